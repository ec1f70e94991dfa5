// Vector loops of every level this machine has == their scalar definitions, bit for bit: casts and
// transposed casts. FP8AMP_TEST_QUICK=1: fewer values; FP8AMP_TEST_EXHAUSTIVE=1: all 2^32 floats.
#include "edge_array.h"
#include "scalar_loops.h"

#include <atomic>
#include <numeric>
#include <thread>

namespace fp8amp::test {
namespace {

class Cast : public testing::TestWithParam<Isa> {
 protected:
  const cpu::Loops& loops() const { return cpu::loops(GetParam()); }
};

const float kScales[] = {1.0f, 0.37f, 123.456f, 0x1p20f, 0x1p126f, 0x1p-60f, 1e-30f, 3.0f};
const std::int64_t kLengths[] = {0, 1, 15, 16, 17, 31, 33, 63, 65, 100, 1000, 2500};

std::string describe(const cpu::CastLoop& l, std::int64_t i) {
  return std::string(name(l.x_type)) + " -> " + name(l.format) +
         (l.has_x_scale_inv ? " with" : " without") + " x_scale_inv, rounding " +
         std::to_string(int(l.rounding)) + ", overflow " + std::to_string(int(l.overflow)) +
         ", scale " + std::to_string(l.scale) + ", n " + std::to_string(l.n) + ", element " +
         std::to_string(i) + ", value " + std::to_string(load_element(l.x, l.x_type, i));
}

// Runs the loop and its definition on l.x, in turn; y must be writable for both.
void expect_equal(const cpu::Loops& loops, cpu::CastLoop l, std::vector<std::uint8_t>& y,
                  std::vector<std::uint8_t>& expected) {
  const std::size_t bytes = std::size_t(l.n) * std::size_t(size_in_bytes(l.format));
  y.assign(bytes, 0xaa);
  expected.assign(bytes, 0x55);
  l.y = expected.data();
  const std::uint32_t max = scalar_cast(l);
  l.y = y.data();
  ASSERT_EQ(loops.cast(l), max) << describe(l, 0);
  if (y == expected) return;
  for (std::size_t i = 0; i < bytes; ++i)
    ASSERT_EQ(int(y[i]), int(expected[i]))
        << describe(l, std::int64_t(i) / size_in_bytes(l.format));
}

TEST_P(Cast, EveryTypePolicyAndLength) {
  for (Edge edge : {Edge::kEnd, Edge::kBegin})
    for (std::int64_t n : kLengths)
      for (DType x_type : kAllTypes) {
        EdgeArray<std::uint8_t> x(n * size_in_bytes(x_type), edge);
        fill_random(x.data(), x_type, n, std::uint64_t(n));
        for (DType format : kFormats) {
          EdgeArray<std::uint8_t> y(n * size_in_bytes(format), edge),
              expected(n * size_in_bytes(format), edge);
          for (Rounding rounding : kRoundings)
            for (Overflow overflow : kOverflows)
              for (bool scaled : {false, true}) {
                cpu::CastLoop l{x.data(), x_type, scaled,   0.3f,     y.data(), format,
                                50.0f,    n,      rounding, overflow, 99,       48};
                const std::uint32_t max = loops().cast(l);
                l.y = expected.data();
                ASSERT_EQ(max, scalar_cast(l)) << describe(l, 0);
                for (std::int64_t i = 0; i < y.size(); ++i)
                  ASSERT_EQ(int(y[i]), int(expected[i])) << describe(l, i / size_in_bytes(format));
              }
        }
      }
}

// Pointers at every offset inside a vector; the bytes around the output stay as they were.
TEST_P(Cast, UnalignedPointersAndGuards) {
  std::vector<float> x(300);
  std::vector<std::uint16_t> x16(300);
  fill_random(x.data(), DType::kFloat32, 300, 1);
  fill_random(x16.data(), DType::kBFloat16, 300, 2);
  std::vector<std::uint8_t> y(400), expected(400);
  for (int offset = 0; offset < 65; ++offset)
    for (bool half : {false, true}) {
      std::fill(y.begin(), y.end(), 0xaa);
      std::fill(expected.begin(), expected.end(), 0xaa);
      const void* from = half ? static_cast<const void*>(x16.data() + offset) : x.data() + offset;
      cpu::CastLoop l{from,
                      half ? DType::kBFloat16 : DType::kFloat32,
                      false,
                      1.0f,
                      y.data() + offset,
                      DType::kE4M3,
                      2.0f,
                      200,
                      Rounding::kNearest,
                      Overflow::kNaN,
                      0,
                      0};
      const std::uint32_t max = loops().cast(l);
      l.y = expected.data() + offset;
      ASSERT_EQ(max, scalar_cast(l));
      ASSERT_EQ(y, expected) << offset;
    }
}

TEST_P(Cast, AllHalvesAtEightScales) {
  std::vector<std::uint16_t> x(65536);
  std::iota(x.begin(), x.end(), std::uint16_t(0));
  std::vector<std::uint8_t> y, expected;
  for (DType x_type : {DType::kFloat16, DType::kBFloat16})
    for (float scale : kScales)
      for (DType format : kFormats)
        for (Rounding rounding : kRoundings)
          for (Overflow overflow : kOverflows)
            for (bool scaled : {false, true}) {
              if (quick() && scale != kScales[1]) continue;
              expect_equal(loops(),
                           {x.data(), x_type, scaled, 0.7f, nullptr, format, scale, 65536, rounding,
                            overflow, 5, 0},
                           y, expected);
              if (HasFatalFailure()) return;
            }
}

TEST_P(Cast, AllFp8CodesAtEightScales) {
  std::vector<std::uint8_t> x(256), y, expected;
  std::iota(x.begin(), x.end(), std::uint8_t(0));
  for (DType x_type : {DType::kE4M3, DType::kE5M2})
    for (float scale : kScales)
      for (DType format : kFormats)
        for (Rounding rounding : kRoundings) {
          expect_equal(loops(),
                       {x.data(), x_type, true, 0.01f, nullptr, format, scale, 256, rounding,
                        Overflow::kNaN, 5, 0},
                       y, expected);
          if (HasFatalFailure()) return;
        }
}

// Every stride-th float (odd, so that all low bits occur), or all 2^32.
TEST_P(Cast, Floats) {
  const std::uint64_t stride = exhaustive() ? 1 : quick() ? 40009 : 4001;
  constexpr std::int64_t kChunk = 1 << 14;
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    std::vector<std::uint32_t> x(kChunk);
    std::vector<std::uint8_t> y, expected;
    while (!failed) {
      const std::uint64_t begin = next.fetch_add(stride * kChunk);
      if (begin >= 1ull << 32) return;
      for (std::int64_t i = 0; i < kChunk; ++i)
        x[std::size_t(i)] = std::uint32_t(begin + stride * std::uint64_t(i));
      for (DType format : kFormats)
        for (Rounding rounding : kRoundings) {
          const Overflow overflow =
              begin / stride / kChunk % 2 ? Overflow::kNaN : Overflow::kSaturate;
          expect_equal(loops(),
                       {x.data(), DType::kFloat32, false, 1.0f, nullptr, format, 1.0f, kChunk,
                        rounding, overflow, 7, begin / 16 * 16},
                       y, expected);
          if (HasFatalFailure()) failed = true;
        }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
}

// The word counter crosses 2^32 inside a vector at element 2^33.
TEST_P(Cast, RandomWordsBeyond32Bits) {
  std::vector<float> x(200, 1.03f);
  std::vector<std::uint8_t> y, expected;
  for (std::uint64_t first : {0ull, 16ull, (1ull << 33) - 16, (1ull << 33) - 48, (1ull << 33) - 64,
                              (1ull << 33) - 112, 1ull << 33, (1ull << 40) + 16}) {
    expect_equal(loops(),
                 {x.data(), DType::kFloat32, false, 1.0f, nullptr, DType::kE4M3, 1.0f, 200,
                  Rounding::kStochastic, Overflow::kNaN, 3, first},
                 y, expected);
    if (HasFatalFailure()) return;
  }
}

struct Shape {
  std::int64_t rows, cols;
};

void check_transpose(const cpu::Loops& loops, Shape shape, DType x_type, bool scaled, DType format,
                     Edge edge) {
  const auto [rows, cols] = shape;
  const std::int64_t n = rows * cols,
                     stride = rows +
                              3;  // columns of a taller matrix: the three rows below stay untouched
  EdgeArray<std::uint8_t> x(n * size_in_bytes(x_type), edge), y(n, edge),
      yt(cols == 0 ? 0 : (cols - 1) * stride + rows, edge);
  std::vector<std::uint8_t> expected(static_cast<std::size_t>(n));
  fill_random(x.data(), x_type, n, std::uint64_t(n));
  std::memset(yt.data(), 0xaa, std::size_t(yt.size()));
  cpu::CastLoop l{x.data(),           x_type,         scaled, 0.2f, y.data(), format, 9.0f, n,
                  Rounding::kNearest, Overflow::kNaN, 0,      0};
  const std::uint32_t max = loops.cast_transpose({l, rows, cols, yt.data(), stride, nullptr});
  l.y = expected.data();
  ASSERT_EQ(max, scalar_cast(l));
  for (std::int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(int(y[i]), int(expected[std::size_t(i)]))
        << rows << " x " << cols << ", element " << i;
    ASSERT_EQ(int(yt[i % cols * stride + i / cols]), int(expected[std::size_t(i)]))
        << rows << " x " << cols << ", element " << i;
  }
  for (std::int64_t c = 0; c + 1 < cols; ++c)
    for (std::int64_t r = rows; r < stride; ++r)
      ASSERT_EQ(int(yt[c * stride + r]), 0xaa) << rows << " x " << cols;
}

TEST_P(Cast, Transpose) {
  for (Edge edge : {Edge::kEnd, Edge::kBegin})
    for (Shape shape : {Shape{0, 0},
                        {0, 7},
                        {7, 0},
                        {1, 1},
                        {3, 5},
                        {16, 16},
                        {1, 300},
                        {300, 1},
                        {61, 64},
                        {64, 128},
                        {65, 129},
                        {17, 200},
                        {130, 70}})
      for (DType format : {DType::kE4M3, DType::kE5M2})
        for (DType x_type : kAllTypes) {
          check_transpose(loops(), shape, x_type, size_in_bytes(x_type) != 4, format, edge);
          check_transpose(loops(), shape, x_type, false, format, edge);
          if (HasFatalFailure()) return;
        }
}

// Whole cache lines of an aligned output take another path.
TEST_P(Cast, TransposeAligned) {
  constexpr std::int64_t kRows = 128, kCols = 256;
  std::vector<std::uint16_t> x(kRows * kCols);
  fill_random(x.data(), DType::kBFloat16, kRows * kCols, 4);
  std::vector<std::uint8_t> y(x.size()), expected(x.size());
  alignas(64) static std::uint8_t yt[kRows * kCols];
  cpu::CastLoop l{x.data(),           DType::kBFloat16,    false, 1.0f,
                  y.data(),           DType::kE4M3,        2.0f,  0,
                  Rounding::kNearest, Overflow::kSaturate, 0,     0};
  const std::uint32_t max = loops().cast_transpose({l, kRows, kCols, yt, kRows, nullptr});
  l.y = expected.data();
  l.n = kRows * kCols;
  EXPECT_EQ(max, scalar_cast(l));
  EXPECT_EQ(y, expected);
  for (std::int64_t i = 0; i < kRows * kCols; ++i)
    ASSERT_EQ(int(yt[i % kCols * kRows + i / kCols]), int(expected[std::size_t(i)])) << i;
}

INSTANTIATE_TEST_SUITE_P(Levels, Cast, testing::ValuesIn(levels()), level_name);

}  // namespace
}  // namespace fp8amp::test
