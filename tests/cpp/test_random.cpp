// Stochastic rounding: exact expectation, and the quality of the random bits beside those of
// Philox4x32-10 (Salmon et al., SC 2011).
#include <fp8amp/numerics/random.h>
#include <fp8amp/numerics/scale.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace fp8amp::numerics {
namespace {

constexpr std::uint32_t kAll = 1u << kRandomBits;

// Over all 2^20 random values, the upper neighbour comes up in exact proportion to the distance.
template <class F>
void check_expectation(int code, double fraction) {
  const double low = decode<F>(typename F::Bits(code)),
               high = decode<F>(typename F::Bits(code + 1));
  const float x = float(low + fraction * (high - low));
  std::int64_t up = 0, bad = 0;
  for (std::uint32_t r = 0; r < kAll; ++r) {
    const int c = encode<F>(x, Rounding::kStochastic, Overflow::kSaturate, r),
              minus = encode<F>(-x, Rounding::kStochastic, Overflow::kSaturate, r);
    bad += (c != code && c != code + 1) || minus != (c | F::kSign);
    up += c == code + 1;
  }
  EXPECT_EQ(bad, 0) << x;
  // FP16 drops 13 bits, E4M3 20, E5M2 21: a step of the fraction is 2^-13 or 2^-20 at worst
  EXPECT_NEAR(double(up) / kAll, fraction, F::kMantissaBits > 3 ? 0x1p-12 : 0x1p-18)
      << "code " << code << " of " << F::kMax;
}

TEST(Stochastic, ExactExpectation) {
  for (double fraction : {0.0, 0.125, 0.25, 0.34375, 0.5, 0.75, 0.96875}) {
    for (int code : {0, 1, 6, 7, 8, 9, 0x37, 0x38, 0x7d}) check_expectation<E4M3>(code, fraction);
    for (int code : {0, 1, 3, 4, 0x3c, 0x7a}) check_expectation<E5M2>(code, fraction);
    for (int code : {0, 1, 1023, 1024, 0x3c00, 0x7bfe}) check_expectation<Fp16>(code, fraction);
  }
}

// A carry out of the largest value would be NaN (E4M3) or Inf.
template <class F>
void check_top() {
  for (float x : {F::kMax, std::nextafter(F::kMax, 0.0f), std::nextafter(F::kMax, 1e30f),
                  F::kMax * 1.03f, 1e30f, std::numeric_limits<float>::infinity()})
    for (std::uint32_t r = 0; r < kAll; r += x == F::kMax ? 1 : 7) {
      const auto code =
          encode<F>(x, Rounding::kStochastic, Overflow::kSaturate, r | (r > kAll - 8 ? 7 : 0));
      ASSERT_TRUE(code == F::kMaxCode || (x < F::kMax && code == F::kMaxCode - 1))
          << x << ", " << r;
    }
}
TEST(Stochastic, NeverNaNAtTheTop) {
  check_top<E4M3>();
  check_top<E5M2>();
  check_top<Fp16>();
}

TEST(Stochastic, ZeroStaysZero) {
  for (std::uint32_t r = 0; r < kAll; ++r) {
    ASSERT_EQ(encode<E4M3>(0.0f, Rounding::kStochastic, Overflow::kSaturate, r), 0);
    ASSERT_EQ(encode<Fp16>(-0.0f, Rounding::kStochastic, Overflow::kSaturate, r), 0x8000);
  }
}

// ---- the generator. u(element, step, tensor) in [0, 1): ours, and the yardstick
using Generator =
    std::function<double(std::uint64_t element, std::uint32_t step, std::uint32_t tensor)>;

double ours(std::uint64_t element, std::uint32_t step, std::uint32_t tensor) {
  return random_bits(random_key(1234, step, tensor), element) / double(kAll);
}
double second_draw(std::uint64_t element, std::uint32_t step, std::uint32_t tensor) {
  return random_bits(random_key(1234, step, tensor), element, Draw::kSecond) / double(kAll);
}

using Words = std::array<std::uint32_t, 4>;
Words philox_block(Words c, std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t(0xD2511F53u) * c[0],
                        b = std::uint64_t(0xCD9E8D57u) * c[2];
    c = {std::uint32_t(b >> 32) ^ c[1] ^ k0, std::uint32_t(b), std::uint32_t(a >> 32) ^ c[3] ^ k1,
         std::uint32_t(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}
double philox(std::uint64_t element, std::uint32_t step, std::uint32_t tensor) {
  const Words block = philox_block(
      {std::uint32_t(element / 4), std::uint32_t(element / 4 >> 32), tensor, 0}, 1234, step);
  return (block[element % 4] >> 12) / double(kAll);
}
TEST(Philox, KnownAnswer) {  // kat_vectors of the Random123 distribution
  EXPECT_EQ(philox_block({}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

constexpr int kCount = 1 << 18;

// Standard deviations from the expected value: N(0, 1) for a perfect generator.
double uniformity(const std::function<double(int)>& u, int bins,
                  double scale) {  // chi-square over `bins` of the fraction of u * scale
  std::vector<int> count(static_cast<std::size_t>(bins));
  for (int i = 0; i < kCount; ++i) {
    const double v = u(i) * scale;
    ++count[std::size_t((v - std::floor(v)) * bins)];
  }
  double chi = 0;
  const double expected = double(kCount) / bins;
  for (int n : count) chi += (n - expected) * (n - expected) / expected;
  return (chi - (bins - 1)) / std::sqrt(2.0 * (bins - 1));
}
double correlation(const std::function<double(int)>& u, const std::function<double(int)>& v) {
  double sum = 0;
  for (int i = 0; i < kCount; ++i) sum += (u(i) - 0.5) * (v(i) - 0.5);
  return 12 * sum / std::sqrt(double(kCount));
}

std::vector<double> deviations(const Generator& g) {
  std::vector<double> z;
  const std::function<double(int)> along[] = {
      [&](int i) { return g(std::uint64_t(i), 7, 3); },         // over elements of one step
      [&](int i) { return g(std::uint64_t(i) * 4096, 7, 3); },  // over a column of a matrix
      [&](int i) { return g(5, std::uint32_t(i), 3); },         // over steps: one element's history
      [&](int i) { return g(5, 7, std::uint32_t(i)); },         // over tensors
      [&](int i) {
        return g((1ull << 33) - 1000 + std::uint64_t(i), 7, 3);
      },  // across the wrap of the low counter word
  };
  for (const auto& u : along) {
    z.push_back(uniformity(u, 256, 1));     // the highest 8 bits
    z.push_back(uniformity(u, 256, 4096));  // the lowest 8 bits
    double mean = 0;
    for (int i = 0; i < kCount; ++i) mean += u(i) - 0.5 + 0.5 / kAll;
    z.push_back(mean * std::sqrt(12.0 / kCount));
    for (int lag : {1, 2, 4, 7, 8, 9, 15, 16, 64, 1024})
      z.push_back(correlation(u, [&](int i) { return u(i + lag); }));
  }
  for (std::uint32_t other :
       {1u, 2u, 1u << 16,
        1u << 31}) {  // the same element at another step, of another tensor, of both
    z.push_back(correlation(along[0], [&](int i) { return g(std::uint64_t(i), 7 ^ other, 3); }));
    z.push_back(correlation(along[0], [&](int i) { return g(std::uint64_t(i), 7, 3 ^ other); }));
    z.push_back(
        correlation(along[0], [&](int i) { return g(std::uint64_t(i), 7 ^ other, 3 ^ other); }));
  }
  return z;
}

struct Quality {
  double largest = 0, rms = 0;
};
Quality quality(const Generator& g) {
  Quality q;
  const std::vector<double> z = deviations(g);
  for (double d : z) {
    q.largest = std::max(q.largest, std::fabs(d));
    q.rms += d * d / double(z.size());
  }
  q.rms = std::sqrt(q.rms);
  return q;
}

TEST(Generator, AsUniformAndUncorrelatedAsPhilox) {
  const Quality hash = quality(ours), yardstick = quality(philox);
  RecordProperty("hash_rms", std::to_string(hash.rms));
  RecordProperty("philox_rms", std::to_string(yardstick.rms));
  std::printf(
      "77 statistics, standard deviations from a perfect generator: hash rms %.2f, largest %.2f; "
      "Philox4x32-10 rms %.2f, largest %.2f\n",
      hash.rms, hash.largest, yardstick.rms, yardstick.largest);
  EXPECT_LT(hash.largest, 4.5);
  EXPECT_LT(yardstick.largest, 4.5);
  EXPECT_LT(hash.rms, 1.35);
  EXPECT_LT(hash.rms, yardstick.rms * 1.35);
}

TEST(Generator, SecondDrawIsAsGoodAsTheFirst) {
  const Quality second = quality(second_draw);
  std::printf("second draw: rms %.2f, largest %.2f\n", second.rms, second.largest);
  EXPECT_LT(second.largest, 4.5);
  EXPECT_LT(second.rms, 1.35);
}

// Of an element, of its neighbours and of the element that shares its word: the draws, and whether
// both round up, which is what counts.
TEST(Generator, SecondDrawIsIndependentOfTheFirst) {
  for (int lag : {0, 1, 8, -8, 16}) {
    const auto first = [&](int i) { return ours(std::uint64_t(i + 16), 7, 3); };
    const auto second = [&](int i) { return second_draw(std::uint64_t(i + 16 + lag), 7, 3); };
    EXPECT_LT(std::fabs(correlation(first, second)), 4.5) << lag;
    constexpr int kBins = 16;
    std::vector<int> count(kBins * kBins);
    for (int i = 0; i < kCount; ++i)
      ++count[std::size_t(first(i) * kBins) * kBins + std::size_t(second(i) * kBins)];
    double chi = 0;
    const double expected = double(kCount) / (kBins * kBins);
    for (int n : count) chi += (n - expected) * (n - expected) / expected;
    EXPECT_LT((chi - (kBins * kBins - 1)) / std::sqrt(2.0 * (kBins * kBins - 1)), 4.5) << lag;
    for (double a : {0.01, 0.3, 0.5, 0.9})
      for (double b : {0.02, 0.25, 0.5, 0.97}) {
        int both = 0;
        for (int i = 0; i < kCount; ++i) both += first(i) < a && second(i) < b;
        const double p = a * b;
        EXPECT_LT(std::fabs(both - kCount * p) / std::sqrt(kCount * p * (1 - p)), 4.5)
            << a << " " << b << " lag " << lag;
      }
  }
}

// Mean of rounded values over elements and over steps: within the sampling error, as with the
// yardstick.
TEST(Generator, RoundedMeanIsUnbiased) {
  for (float x : {1.01f, 1.0625f, 0.003f, 13.9f, 301.0f})
    for (bool over_steps : {false, true})
      for (const Generator& g : {Generator(ours), Generator(philox)}) {
        double mean = 0, square = 0;
        for (int i = 0; i < kCount; ++i) {
          const double u = over_steps ? g(77, std::uint32_t(i), 1) : g(std::uint64_t(i), 3, 1);
          const double error =
              decode<E4M3>(encode<E4M3>(x, Rounding::kStochastic, Overflow::kSaturate,
                                        std::uint32_t(u * kAll))) -
              double(x);
          mean += error / kCount;
          square += error * error / kCount;
        }
        EXPECT_LT(std::fabs(mean), 4.5 * std::sqrt(square / kCount))
            << x << " over " << (over_steps ? "steps" : "elements");
      }
}

TEST(Generator, SeedsStepsTensorsAndPurposesDiffer) {
  const std::uint32_t key = random_key(1, 2, 3, 0);
  EXPECT_NE(key, random_key(2, 2, 3, 0));
  EXPECT_NE(key, random_key(1ull << 32 | 1, 2, 3, 0));
  EXPECT_NE(key, random_key(1, 3, 3, 0));
  EXPECT_NE(key, random_key(1, 2, 4, 0));
  EXPECT_NE(key, random_key(1, 3, 2, 0));
  EXPECT_NE(key, random_key(1, 2, 3, 1));
  EXPECT_NE(key, random_key(1, 2, 3, 2));
}

}  // namespace
}  // namespace fp8amp::numerics
