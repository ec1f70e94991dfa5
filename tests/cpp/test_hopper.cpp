// The GEMM with Hopper's accumulators: against the published model in integers, its error bound,
// and everything around the sum as in the GEMM.
#include <fp8amp/numerics/random.h>
#include <fp8amp/parallel.h>

#include <cmath>
#include <cstring>

#include "bad_input.h"
#include "hopper_oracle.h"
#include "kernels/element.h"

namespace fp8amp {
namespace {

constexpr DType kFormats[] = {DType::kE4M3, DType::kE5M2};

// Finite codes; `narrow`: of a few binades, as gradients and weights have.
ScaledTensor random_codes(std::int64_t rows, std::int64_t cols, DType type, std::uint32_t seed,
                          bool narrow) {
  const ScaledTensor t(tensor({rows, cols}, type), scalar(0.25f));
  const std::uint32_t largest = type == DType::kE4M3 ? 0x7e : 0x7b, low = narrow ? largest / 2 : 0,
                      count = (narrow ? largest / 4 : largest) + 1;
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const std::uint32_t r = numerics::random_word(seed, std::uint64_t(i));
    const std::uint32_t code = r >> 28 == 0 ? 0 : low + (r & 0xffff) % count;
    t.payload().mutable_data_as<std::uint8_t>()[i] = std::uint8_t(code | (r >> 20 & 0x80));
  }
  return t;
}

std::vector<test::Fp8Parts> row(const ScaledTensor& t, std::int64_t r) {
  std::vector<test::Fp8Parts> result;
  for (std::int64_t i = 0; i < t.shape()[1]; ++i)
    result.push_back(test::parts(t.payload().data_as<std::uint8_t>()[r * t.shape()[1] + i],
                                 t.dtype() == DType::kE4M3 ? 3 : 2));
  return result;
}

TEST(Hopper, EqualsTheModelInIntegersWithinItsBound) {
  for (DType a_type : kFormats)
    for (DType b_type : kFormats)
      for (std::int64_t k : {0, 1, 31, 32, 33, 127, 129, 1000, 2064})
        for (bool fast : {false, true})
          for (bool narrow : {false, true}) {
            const std::int64_t m = 5, n = 37;
            const ScaledTensor a = random_codes(m, k, a_type, 1, narrow),
                               b = random_codes(n, k, b_type, 2, narrow);
            const Tensor out = tensor({m, n}), exact = tensor({m, n});
            GemmOptions o{.transpose_b = true, .fast_accumulation = fast};
            gemm(a, b, exact, o);
            o.accumulation = Accumulation::kHopper;
            gemm(a, b, out, o);
            for (std::int64_t i = 0; i < m * n; ++i) {
              const test::HopperDot dot = test::hopper_dot(row(a, i / n), row(b, i % n), fast);
              const float d = out.data_as<float>()[i];
              ASSERT_EQ(d, dot.sum * 0.25f * 0.25f) << name(a_type) << " " << k << " " << fast;
              double sum = 0, magnitudes = 0;  // exact: the products have few bits
              const auto x = row(a, i / n), y = row(b, i % n);
              for (std::size_t j = 0; j < x.size(); ++j) {
                const double p =
                    std::ldexp(double(x[j].significand) * y[j].significand,
                               x[j].exponent + y[j].exponent - x[j].fraction - y[j].fraction);
                sum += p, magnitudes += std::fabs(p);
              }
              ASSERT_LE(std::fabs(double(d) * 16 - sum),
                        dot.bound + double(k / 128 + 1) * 0x1p-23 * magnitudes);
            }
          }
}

// Where truncation costs nothing the two agree to the bit, bias, accumulation and all strides too.
TEST(Hopper, SmallIntegersAreExact) {
  for (bool ta : {false, true})
    for (bool tb : {false, true})
      for (DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        const std::int64_t m = 7, n = 70, k = 300;
        ScaledTensor a(tensor(ta ? std::vector{k, m} : std::vector{m, k}, DType::kE4M3),
                       scalar(0.5f)),
            b(tensor(tb ? std::vector{n, k} : std::vector{k, n}, DType::kE5M2), scalar(4.0f));
        const std::uint8_t a_codes[] = {0x00, 0x38, 0xb8, 0x40},
                           b_codes[] = {0x00, 0x3c, 0xbc, 0x40};
        for (std::int64_t i = 0; i < m * k; ++i)
          a.payload().mutable_data_as<std::uint8_t>()[i] =
              a_codes[numerics::random_word(3, std::uint64_t(i)) % 4];
        for (std::int64_t i = 0; i < n * k; ++i)
          b.payload().mutable_data_as<std::uint8_t>()[i] =
              b_codes[numerics::random_word(4, std::uint64_t(i)) % 4];
        const Tensor bias = tensor({n}), out = tensor({m, n}, type),
                     expected = tensor({m, n}, type);
        for (std::int64_t i = 0; i < n; ++i) bias.mutable_data_as<float>()[i] = 0.3f * float(i);
        GemmOptions o{.transpose_a = ta, .transpose_b = tb, .bias = &bias, .accumulate = true};
        gemm(a, b, expected, o), gemm(a, b, expected, o);
        o.accumulation = Accumulation::kHopper;
        gemm(a, b, out, o), gemm(a, b, out, o);
        EXPECT_EQ(std::memcmp(out.data(), expected.data(), std::size_t(out.nbytes())), 0);
      }
}

// One large product, and many that it pushes out of the 14 bits; promotion brings most back.
TEST(Hopper, SmallTermsAreLost) {
  const std::int64_t k = 1024;
  ScaledTensor a(tensor({1, k}, DType::kE4M3), scalar(1)),
      b(tensor({1, k}, DType::kE4M3), scalar(1));
  for (std::int64_t i = 0; i < k; ++i) {
    a.payload().mutable_data_as<std::uint8_t>()[i] = i == 0 ? 0x78 : 0x20;  // 256, 2^-3
    b.payload().mutable_data_as<std::uint8_t>()[i] = i == 0 ? 0x78 : 0x20;
  }
  const auto result = [&](bool fast, Accumulation accumulation) {
    const Tensor out = tensor({1, 1});
    gemm(a, b, out, {.transpose_b = true, .fast_accumulation = fast, .accumulation = accumulation});
    return *out.data_as<float>();
  };
  EXPECT_EQ(result(false, Accumulation::kDefault), 65536 + 1023 * 0x1p-6f);
  EXPECT_EQ(result(true, Accumulation::kHopper), 65536.0f);
  EXPECT_EQ(result(false, Accumulation::kHopper), 65536 + 896 * 0x1p-6f);
}

TEST(Hopper, NonFiniteAndThreads) {
  const ScaledTensor a = random_codes(9, 200, DType::kE5M2, 5, true),
                     b = random_codes(100, 200, DType::kE4M3, 6, true);
  a.payload().mutable_data_as<std::uint8_t>()[3 * 200 + 7] = 0x7c;
  b.payload().mutable_data_as<std::uint8_t>()[90 * 200 + 7] = 0x7f;
  const Tensor one = tensor({9, 100}), many = tensor({9, 100}), plain = tensor({9, 100});
  const int before = num_threads();
  GemmOptions o{.transpose_b = true};
  gemm(a, b, plain, o);
  o.accumulation = Accumulation::kHopper;
  set_num_threads(1), gemm(a, b, one, o);
  set_num_threads(5), gemm(a, b, many, o);
  set_num_threads(before);
  EXPECT_EQ(std::memcmp(one.data(), many.data(), 3600), 0);
  for (std::int64_t i = 0; i < 900; ++i)
    EXPECT_EQ(std::isfinite(one.data_as<float>()[i]), std::isfinite(plain.data_as<float>()[i]));
}

}  // namespace
}  // namespace fp8amp
