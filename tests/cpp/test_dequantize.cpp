// Vector loops of every level this machine has == their scalar definitions, bit for bit:
// dequantisation, accumulation, reductions.
#include "edge_array.h"
#include "scalar_loops.h"

#include <cmath>
#include <numeric>

namespace fp8amp::test {
namespace {

class Loops : public testing::TestWithParam<Isa> {
 protected:
  const cpu::Loops& loops() const { return cpu::loops(GetParam()); }
};

const std::int64_t kLengths[] = {0, 1, 7, 8, 15, 16, 17, 31, 33, 63, 65, 100, 1000, 2500};

TEST_P(Loops, DequantizeEveryTypeAndLength) {
  for (Edge edge : {Edge::kEnd, Edge::kBegin})
    for (std::int64_t n : kLengths)
      for (DType x_type : kAllTypes)
        for (DType y_type : kPlainTypes)
          for (bool scaled : {false, true}) {
            EdgeArray<std::uint8_t> x(n * size_in_bytes(x_type), edge),
                y(n * size_in_bytes(y_type), edge), expected(y.size(), edge);
            fill_random(x.data(), x_type, n, std::uint64_t(n));
            cpu::DequantizeLoop l{x.data(), x_type, scaled, 0.37f, y.data(), y_type, n};
            loops().dequantize(l);
            l.y = expected.data();
            scalar_dequantize(l);
            ASSERT_EQ(y, expected)
                << name(x_type) << " -> " << name(y_type) << ", n " << n << ", scaled " << scaled;
          }
}

TEST_P(Loops, DequantizeEveryCodeAtExtremeScales) {
  std::vector<std::uint16_t> codes(65536);
  std::iota(codes.begin(), codes.end(), std::uint16_t(0));
  std::vector<std::uint8_t> bytes(256);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t(0));
  std::vector<std::uint32_t> y(65536), expected(65536);
  for (DType x_type : {DType::kE4M3, DType::kE5M2, DType::kFloat16, DType::kBFloat16})
    for (DType y_type : kPlainTypes)
      for (float scale_inv : {1.0f, 0.37f, 0x1p-126f, 0x1p118f, 0x1p126f, 0x1p-20f, 3.0e38f}) {
        const bool byte = is_float8(x_type);
        cpu::DequantizeLoop l{byte ? static_cast<const void*>(bytes.data()) : codes.data(),
                              x_type,
                              true,
                              scale_inv,
                              y.data(),
                              y_type,
                              byte ? 256 : 65536};
        loops().dequantize(l);
        l.y = expected.data();
        scalar_dequantize(l);
        ASSERT_EQ(y, expected) << name(x_type) << " -> " << name(y_type) << " at " << scale_inv;
      }
}

// Plain FP16 and BF16 from every kind of float: ties, overflow to Inf, subnormals, NaN.
TEST_P(Loops, DequantizeFloats) {
  constexpr std::int64_t kChunk = 1 << 14;
  const std::uint64_t stride = exhaustive() ? 1 : quick() ? 40009 : 4001;
  std::vector<std::uint32_t> x(kChunk);
  std::vector<std::uint16_t> y(kChunk), expected(kChunk);
  for (std::uint64_t begin = 0; begin < 1ull << 32; begin += stride * kChunk) {
    for (std::int64_t i = 0; i < kChunk; ++i)
      x[std::size_t(i)] = std::uint32_t(begin + stride * std::uint64_t(i));
    for (DType y_type : {DType::kFloat16, DType::kBFloat16}) {
      cpu::DequantizeLoop l{x.data(), DType::kFloat32, false, 1.0f, y.data(), y_type, kChunk};
      loops().dequantize(l);
      l.y = expected.data();
      scalar_dequantize(l);
      ASSERT_EQ(y, expected) << name(y_type) << " from " << begin;
    }
  }
}

// Where FP16 and BF16 change their behaviour: every float between its largest value and Inf, around
// the smallest numbers, NaN.
TEST_P(Loops, DequantizeFloatsAtTheLimits) {
  std::vector<std::uint32_t> x;
  for (std::uint32_t begin : {0x477fdf00u, 0x477fef00u, 0x477fff00u, 0x7f7f7f00u, 0x7f7fff00u,
                              0x7f800000u - 0x100u, 0x7fbfff00u, 0x33000000u - 0x100u, 0x387fff00u,
                              0x00000000u, 0x007fff00u, 0x7fffff00u - 0x100u})
    for (std::uint32_t i = 0; i < 0x200; ++i) {
      x.push_back(begin + i);
      x.push_back((begin + i) | 0x80000000u);
    }
  std::vector<std::uint16_t> y(x.size()), expected(x.size());
  for (DType y_type : {DType::kFloat16, DType::kBFloat16}) {
    cpu::DequantizeLoop l{x.data(), DType::kFloat32,       false, 1.0f, y.data(),
                          y_type,   std::int64_t(x.size())};
    loops().dequantize(l);
    l.y = expected.data();
    scalar_dequantize(l);
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(y[i], expected[i]) << name(y_type) << " from bits " << x[i];
  }
}

TEST_P(Loops, Accumulate) {
  for (Edge edge : {Edge::kEnd, Edge::kBegin})
    for (std::int64_t n : kLengths)
      for (DType x_type : kAllTypes)
        for (DType format : kFormats)
          for (bool measure : {false, true}) {
            EdgeArray<std::uint8_t> x(n * size_in_bytes(x_type), edge),
                sum(n * size_in_bytes(format), edge), expected(sum.size(), edge);
            fill_random(x.data(), x_type, n, std::uint64_t(n));
            fill_random(sum.data(), format, n, std::uint64_t(n + 1));
            std::memcpy(expected.data(), sum.data(), std::size_t(sum.size()));
            cpu::AccumulateLoop l{x.data(), x_type, 0.3f,    sum.data(), format, 0.7f,
                                  3.3f,     n,      measure, 77,         32,     nullptr};
            std::uint32_t checksum = 5, expected_checksum = 5;
            l.checksum = &checksum;
            const std::uint32_t max = loops().accumulate(l);
            l.sum = expected.data();
            l.checksum = &expected_checksum;
            const std::uint32_t expected_max = scalar_accumulate(
                l);  // of NaN + NaN, which payload survives is the compiler's choice
            ASSERT_TRUE(max == expected_max ||
                        (max > numerics::kInfBits && expected_max > numerics::kInfBits))
                << name(x_type) << " + " << name(format) << ", n " << n;
            ASSERT_EQ(checksum, expected_checksum);
            ASSERT_EQ(sum, expected)
                << name(x_type) << " + " << name(format) << ", n " << n << ", measure " << measure;
          }
}

TEST_P(Loops, Amax) {
  for (Edge edge : {Edge::kEnd, Edge::kBegin})
    for (std::int64_t n : kLengths)
      for (DType type : kAllTypes) {
        EdgeArray<std::uint8_t> x(n * size_in_bytes(type), edge);
        fill_random(x.data(), type, n, std::uint64_t(n));
        ASSERT_EQ(loops().amax(x.data(), type, n), scalar_amax(x.data(), type, n))
            << name(type) << ", n " << n;
        // ordinary numbers, the largest at any place
        for (std::int64_t i = 0; i < x.size(); ++i) x[i] &= type == DType::kFloat32 ? 0x3f : 0x37;
        ASSERT_EQ(loops().amax(x.data(), type, n), scalar_amax(x.data(), type, n))
            << name(type) << ", n " << n;
      }
}

// A NaN or an Inf in any lane is seen: an integer maximum over bits, where fmax would drop NaN.
TEST_P(Loops, AmaxSeesNonFiniteValuesInEveryLane) {
  const std::int64_t n = 1000;
  for (std::int64_t at : {0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 500, 991, 992, 998, 999})
    for (float bad : {NAN, -NAN, INFINITY, -INFINITY})
      for (DType type : kPlainTypes) {
        std::vector<std::uint32_t> x(std::size_t(n), 0);
        store_element(x.data(), type, 3, -3.0f);
        ASSERT_EQ(loops().amax(x.data(), type, n), numerics::float_bits(3.0f));
        store_element(x.data(), type, at, bad);
        const std::uint32_t amax = loops().amax(x.data(), type, n);
        ASSERT_EQ(amax > numerics::kInfBits, std::isnan(bad)) << at;
        ASSERT_GE(amax, numerics::kInfBits) << at;
        for (DType format : kFormats) {  // and the cast reports it too
          std::vector<std::uint16_t> y(std::size_t(n), 0);
          cpu::CastLoop l{x.data(),           type,           false, 1.0f,
                          y.data(),           format,         1.0f,  n,
                          Rounding::kNearest, Overflow::kNaN, 0,     0};
          ASSERT_EQ(loops().cast(l), amax) << at;
        }
      }
}

TEST_P(Loops, SumOfSquares) {
  for (Edge edge : {Edge::kEnd, Edge::kBegin})
    for (std::int64_t n : kLengths)
      for (DType type : kAllTypes)
        for (bool finite : {false, true}) {
          EdgeArray<std::uint8_t> x(n * size_in_bytes(type), edge);
          fill_random(x.data(), type, n, std::uint64_t(n));
          if (finite)
            for (std::int64_t i = 0; i < x.size(); ++i) x[i] &= 0xb7;
          const double sum = loops().sum_of_squares(x.data(), type, n),
                       expected = scalar_sum_of_squares(x.data(), type, n);
          ASSERT_TRUE(sum == expected || (std::isnan(sum) && std::isnan(expected)))
              << name(type) << ", n " << n << ": " << sum << ", " << expected;
          ASSERT_TRUE(!finite || std::isfinite(sum)) << name(type);
        }
}

TEST_P(Loops, ScaleValues) {
  for (Edge edge : {Edge::kEnd, Edge::kBegin})
    for (std::int64_t n : kLengths)
      for (DType type : kPlainTypes) {
        EdgeArray<std::uint8_t> x(n * size_in_bytes(type), edge), expected(x.size(), edge);
        fill_random(x.data(), type, n, std::uint64_t(n));
        scalar_dequantize({x.data(), type, true, 0.3f, expected.data(), type, n});
        loops().scale_values(x.data(), type, 0.3f, n);
        ASSERT_EQ(x, expected) << name(type) << ", n " << n;
      }
}

INSTANTIATE_TEST_SUITE_P(Levels, Loops, testing::ValuesIn(levels()), level_name);

}  // namespace
}  // namespace fp8amp::test
