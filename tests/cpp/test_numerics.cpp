// Conversions and scales of numerics/ against two oracles: cuda_fp8.h's host code (where the build
// found it) and plain arithmetic. FP8AMP_TEST_EXHAUSTIVE=1: all 2^32 floats. The numbers in the
// comments "BR-" are defects seen in other libraries.
#include <fp8amp/numerics/scale.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#if FP8AMP_HAVE_CUDA_FP8_H
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace fp8amp::numerics {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(),
                kInf = std::numeric_limits<float>::infinity();

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && std::string(value) != "0";
}

// Calls check(float bits) for every stride-th float (odd: all low bits occur), on all cores;
// returns the number of failures.
template <class Check>
std::uint64_t count_failures(const Check& check) {
  const std::uint64_t stride = is_set("FP8AMP_TEST_EXHAUSTIVE") ? 1
                               : is_set("FP8AMP_TEST_QUICK")    ? 40009
                                                                : 1009,
                      chunk = stride << 16;
  std::atomic<std::uint64_t> next{0}, failures{0};
  const auto work = [&] {
    std::uint64_t bad = 0;
    for (std::uint64_t begin; (begin = next.fetch_add(chunk)) < 1ull << 32;)
      for (std::uint64_t u = begin; u < std::min(begin + chunk, std::uint64_t(1) << 32);
           u += stride)
        bad += !check(bits_float(std::uint32_t(u)));
    failures += bad;
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  return failures;
}

// ---- oracle in plain arithmetic: the format as the table of its values, from the definition in
// formats.h
template <class F>
double value_of(int code) {  // non-negative, up to and including the code after the largest
  const int m = code & ((1 << F::kMantissaBits) - 1), e = code >> F::kMantissaBits;
  return e == 0 ? std::ldexp(m, 1 - F::kBias - F::kMantissaBits)
                : std::ldexp((1 << F::kMantissaBits) + m, e - F::kBias - F::kMantissaBits);
}

template <class F>
const std::vector<double>& table() {
  static const std::vector<double> t = [] {
    std::vector<double> v;
    for (int c = 0; c <= F::kMaxCode; ++c) v.push_back(value_of<F>(c));
    return v;
  }();
  return t;
}

// Largest code whose value is <= |x|.
template <class F>
int code_below(double magnitude) {
  return int(std::upper_bound(table<F>().begin(), table<F>().end(), magnitude) -
             table<F>().begin()) -
         1;
}

template <class F>
int nearest_code(float x) {
  if (std::isnan(x)) return F::kNaNCode;
  const double m = std::fabs(double(x));
  int c = code_below<F>(m);
  if (c < F::kMaxCode) {
    const double down = m - table<F>()[std::size_t(c)], up = table<F>()[std::size_t(c) + 1] - m;
    if (up < down || (up == down && c % 2 == 1)) ++c;
  }
  return c | (std::signbit(x) ? F::kSign : 0);
}

template <class F>
void check_format() {
  int non_finite = 0, nan = 0;
  for (int c = 0; c <= std::numeric_limits<typename F::Bits>::max(); ++c) {
    const float v = decode<F>(typename F::Bits(c));
    const int a = c & (F::kSign - 1);
    non_finite += !is_finite(v);
    nan += std::isnan(v);
    if (a > F::kMaxCode) continue;
    ASSERT_EQ(v, (c & F::kSign ? -1 : 1) * value_of<F>(a)) << c;
    ASSERT_EQ(std::signbit(v), c > a) << c;
    ASSERT_EQ(int(encode<F>(v)), c);  // every value is its own nearest
    ASSERT_EQ(int(encode<F>(v, Rounding::kStochastic, Overflow::kNaN, 0xfffff)), c);
  }
  EXPECT_EQ(non_finite, sizeof(typename F::Bits) == 2 ? 2048
                        : F::kMantissaBits == 3       ? 2
                                                      : 8);  // BR-014
  EXPECT_EQ(nan, sizeof(typename F::Bits) == 2 ? 2046 : F::kMantissaBits == 3 ? 2 : 6);
  EXPECT_EQ(decode<F>(F::kMaxCode), F::kMax);
  EXPECT_TRUE(std::isnan(decode<F>(F::kNaNCode)));
}

TEST(Formats, EveryCode) {
  check_format<E4M3>();
  check_format<E5M2>();
  check_format<Fp16>();
  EXPECT_EQ(decode<E5M2>(0x7c), kInf);
  EXPECT_EQ(decode<E5M2>(0xfc), -kInf);
}

TEST(Encode, NearestAgainstPlainArithmetic) {
  EXPECT_EQ(count_failures([](float x) {
              return encode<E4M3>(x) == nearest_code<E4M3>(x) &&
                     encode<E5M2>(x) == nearest_code<E5M2>(x);
            }),
            0u);
  EXPECT_EQ(count_failures([](float x) { return encode<Fp16>(x) == nearest_code<Fp16>(x); }), 0u);
}

// Around every value and every midpoint of two values: one float below, the number itself, one
// float above.
template <class F>
void check_boundaries() {
  for (int c = 0; c < F::kMaxCode; ++c)
    for (double centre : {value_of<F>(c), (value_of<F>(c) + value_of<F>(c + 1)) / 2})
      for (float x : {std::nextafter(float(centre), 0.0f), float(centre),
                      std::nextafter(float(centre), kInf)})
        for (float v : {x, -x}) ASSERT_EQ(int(encode<F>(v)), nearest_code<F>(v)) << v;
}
TEST(Encode, Boundaries) {
  check_boundaries<E4M3>();
  check_boundaries<E5M2>();
  check_boundaries<Fp16>();
}

TEST(Encode, OverflowPolicy) {  // BR-007, BR-008
  for (float x :
       {448.0f, 449.0f, 464.0f, 464.01f, 465.0f, 500.0f, 1e30f, std::numeric_limits<float>::max()})
    for (Overflow overflow : {Overflow::kSaturate, Overflow::kNaN}) {
      EXPECT_EQ(encode<E4M3>(x, Rounding::kNearest, overflow), 0x7e)
          << x;  // a finite value saturates under either policy
      EXPECT_EQ(encode<E4M3>(-x, Rounding::kNearest, overflow), 0xfe) << x;
    }
  for (float x : {61440.0f, 65536.0f, 1e30f}) EXPECT_EQ(encode<E5M2>(x), 0x7b) << x;
  EXPECT_EQ(encode<E4M3>(kInf), 0x7e);
  EXPECT_EQ(encode<E4M3>(-kInf), 0xfe);
  EXPECT_EQ(encode<E5M2>(kInf), 0x7b);
  for (float x : {kInf, -kInf, kNaN, -kNaN})
    for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      EXPECT_EQ(encode<E4M3>(x, rounding, Overflow::kNaN), 0x7f);
      EXPECT_EQ(encode<E5M2>(x, rounding, Overflow::kNaN), 0x7f);
      EXPECT_EQ(encode<Fp16>(x, rounding, Overflow::kNaN), 0x7fff);
    }
  // quantize_element asks the value, not the product: a finite value times a large scale saturates
  EXPECT_EQ(quantize_element<E4M3>(1e30f, 1e30f, Rounding::kNearest, Overflow::kNaN, 0), 0x7e);
  EXPECT_EQ(quantize_element<E4M3>(-kInf, 1e-30f, Rounding::kNearest, Overflow::kNaN, 0), 0x7f);
}

TEST(Encode, TiesAndOneRounding) {  // BR-010
  const auto round_trip = [](float x) { return decode<E4M3>(encode<E4M3>(x)); };
  EXPECT_EQ(round_trip(17.0f), 16.0f);
  EXPECT_EQ(round_trip(19.0f), 20.0f);
  EXPECT_EQ(round_trip(1.0625f), 1.0f);
  EXPECT_EQ(round_trip(1.1875f), 1.25f);
  EXPECT_EQ(round_trip(0x1p-10f), 0.0f);
  EXPECT_EQ(round_trip(std::nextafter(0x1p-10f, 1.0f)), 0x1p-9f);
  EXPECT_EQ(round_trip(1.0625f + 0x1p-13f), 1.125f);  // by way of FP16 or BF16: 1.0
  EXPECT_EQ(encode<E4M3>(-0.0f), 0x80);
}

TEST(Plain, Bfloat16AgainstPlainArithmetic) {
  EXPECT_EQ(count_failures([](float x) {
              const std::uint16_t h = float_to_bfloat16(x);
              if (std::isnan(x))
                return std::isnan(bfloat16_to_float(h)) &&
                       std::signbit(bfloat16_to_float(h)) == std::signbit(x);
              const std::uint32_t low = float_bits(x) & 0xffff0000u;
              const double down = std::fabs(double(x) - double(bits_float(low)));
              const double step =
                  std::isinf(x)
                      ? 1.0
                      : std::ldexp(1.0, std::max(std::ilogb(x == 0 ? 1e-45f : x), -126) - 7);
              const bool up = down > step / 2 || (down == step / 2 && (low >> 16 & 1));
              return h == (low >> 16) + up;
            }),
            0u);
}
TEST(Plain, HalfOverflow) {
  EXPECT_EQ(float_to_half(std::nextafter(65520.0f, 0.0f)), 0x7bff);  // rounds to 65504
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);                        // the tie, to even: 65536
  EXPECT_EQ(float_to_half(-65520.0f), 0xfc00);
  EXPECT_EQ(float_to_half(kInf), 0x7c00);
}
TEST(Plain, Half) {
  EXPECT_EQ(
      count_failures(
          [](float x) {  // like the storage format, but what rounds to 65536 and Inf become Inf
            if (std::isnan(x)) return std::isnan(half_to_float(float_to_half(x)));
            const bool inf = std::fabs(x) >= 65520.0f;
            return float_to_half(x) ==
                   (inf ? 0x7c00 | (std::signbit(x) ? 0x8000 : 0) : nearest_code<Fp16>(x));
          }),
      0u);
}

#if FP8AMP_HAVE_CUDA_FP8_H
bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : float_bits(a) == float_bits(b);
}

TEST(CudaHeader, EveryCode) {
  for (int c = 0; c < 256; ++c) {
    __nv_fp8_e4m3 a;
    __nv_fp8_e5m2 b;
    a.__x = b.__x = __nv_fp8_storage_t(c);
    EXPECT_TRUE(same(decode<E4M3>(std::uint8_t(c)), float(a))) << c;
    EXPECT_TRUE(same(decode<E5M2>(std::uint8_t(c)), float(b))) << c;
  }
  for (int c = 0; c < 65536; ++c) {
    EXPECT_TRUE(
        same(half_to_float(std::uint16_t(c)), __half2float(__half(__half_raw{std::uint16_t(c)}))))
        << c;
    EXPECT_TRUE(same(bfloat16_to_float(std::uint16_t(c)),
                     __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{std::uint16_t(c)}))))
        << c;
  }
}

TEST(CudaHeader, EveryHalfAndBfloat16AtEightScales) {
  for (float scale : {1.0f, 0.37f, 123.456f, 0x1p20f, 0x1p126f, 0x1p-60f, 1e-30f, 3.0f})
    for (int c = 0; c < 65536; ++c)
      for (float x : {half_to_float(std::uint16_t(c)), bfloat16_to_float(std::uint16_t(c))}) {
        ASSERT_EQ(quantize_element<E4M3>(x, scale, Rounding::kNearest, Overflow::kSaturate, 0),
                  __nv_cvt_float_to_fp8(x * scale, __NV_SATFINITE, __NV_E4M3))
            << x;
        ASSERT_EQ(quantize_element<E5M2>(x, scale, Rounding::kNearest, Overflow::kSaturate, 0),
                  __nv_cvt_float_to_fp8(x * scale, __NV_SATFINITE, __NV_E5M2))
            << x;
      }
}

TEST(CudaHeader, Floats) {
  EXPECT_EQ(count_failures([](float x) {
              return encode<E4M3>(x) == __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3) &&
                     encode<E5M2>(x) == __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
            }),
            0u);
  EXPECT_EQ(count_failures([](float x) {
              if (std::isnan(x)) return true;  // the header has one NaN, we keep the sign
              return float_to_half(x) == __half_raw(__float2half_rn(x)).x &&
                     float_to_bfloat16(x) == __nv_bfloat16_raw(__float2bfloat16_rn(x)).x;
            }),
            0u);
}
#endif

// ---- scales
constexpr float kFormatMax[] = {E4M3::kMax, E5M2::kMax, Fp16::kMax};

TEST(Scale, ZeroAndNonFinite) {  // BR-001, BR-003
  for (float amax : {0.0f, -0.0f, kInf, kNaN})
    for (ScaleRounding rounding : {ScaleRounding::kPowerOfTwo, ScaleRounding::kExact}) {
      EXPECT_EQ(compute_scale(amax, 448.0f, rounding), 1.0f);
      EXPECT_EQ(compute_scale(amax, 448.0f, rounding, 3, 0.25f), 0.25f);
    }
}

TEST(Scale, TinyAmaxIsCapped) {  // BR-004
  const float first_overflow[] = {1.3166e-36f, 1.6852e-34f,
                                  1.9250e-34f};  // below, format_max / amax is Inf
  for (int f = 0; f < 3; ++f) {
    EXPECT_FALSE(is_finite(kFormatMax[f] / (first_overflow[f] * 0.999f)));
    EXPECT_TRUE(is_finite(kFormatMax[f] / (first_overflow[f] * 1.001f)));
    for (float amax : {1e-30f, 1e-34f, 1e-35f, 1e-37f, 1e-38f, 0x1p-149f})
      for (int margin : {-64, 0, 64})
        for (ScaleRounding rounding : {ScaleRounding::kPowerOfTwo, ScaleRounding::kExact}) {
          const float scale = compute_scale(amax, kFormatMax[f], rounding, margin),
                      inverse = inverse_scale(scale);
          EXPECT_TRUE(scale >= kMinScale && scale <= kMaxScale) << amax;
          EXPECT_TRUE(std::isnormal(inverse)) << amax;
        }
  }
  EXPECT_EQ(compute_scale(1e-37f, 448.0f, ScaleRounding::kPowerOfTwo), kMaxScale);
  EXPECT_NEAR(decode<E4M3>(encode<E4M3>(1e-37f * kMaxScale)) * inverse_scale(kMaxScale),
              1.0579e-37f, 1e-41f);
  EXPECT_EQ(encode<E4M3>(0x1p-149f * kMaxScale), 0);
  EXPECT_EQ(compute_scale(1e-30f, 448.0f, ScaleRounding::kExact), 448.0f / 1e-30f);
  EXPECT_EQ(compute_scale(std::numeric_limits<float>::max(), 448.0f, ScaleRounding::kExact, 64),
            kMinScale);
}

TEST(Scale,
     HalfSourceInFp32) {  // BR-006: the scale is beyond FP16's range, the product is taken in FP32
  const float x = half_to_float(float_to_half(0x1p-17f)),
              scale = compute_scale(x, Fp16::kMax, ScaleRounding::kExact);
  EXPECT_EQ(scale, 8585740288.0f);
  EXPECT_EQ(decode<Fp16>(encode<Fp16>(x * scale)) * inverse_scale(scale), 7.62939453125e-06f);
  const float scale8 = compute_scale(x, 448.0f, ScaleRounding::kPowerOfTwo);
  EXPECT_EQ(decode<E4M3>(encode<E4M3>(x * scale8)) * inverse_scale(scale8), 7.62939453125e-06f);
}

// The correctly rounded quotient, margin included, however far format_max / amax overflows.
TEST(Scale, AgainstDouble) {
  for (std::uint32_t bits = 1; bits < kInfBits; bits += 99991)
    for (int margin : {-64, -3, 0, 1, 3, 17, 64})
      for (float format_max : {E4M3::kMax, E5M2::kMax, Fp16::kMax}) {
        const float amax = bits_float(bits);
        const double wanted = std::clamp(format_max / std::ldexp(double(amax), margin),
                                         double(kMinScale), double(kMaxScale));
        ASSERT_EQ(compute_scale(amax, format_max, ScaleRounding::kExact, margin), float(wanted))
            << amax << " margin " << margin;
        ASSERT_EQ(compute_scale(amax, format_max, ScaleRounding::kPowerOfTwo, margin),
                  std::exp2(std::floor(std::log2(wanted))))
            << amax << " margin " << margin;
      }
  EXPECT_EQ(compute_scale(1e-36f, 448.0f, ScaleRounding::kExact, 3), 448.0f / 8 / 1e-36f);
}

TEST(Scale, PowerOfTwoIsAFloor) {  // BR-011, BR-012
  std::uint32_t r = 1;
  for (int i = 0; i < 20000; ++i) {
    r = r * 1664525u + 1013904223u;
    const float amax = std::ldexp(1.0f + float(r >> 9) * 0x1p-23f, int(r % 60) - 30);
    for (float format_max : kFormatMax) {
      const float exact = compute_scale(amax, format_max, ScaleRounding::kExact),
                  scale = compute_scale(amax, format_max, ScaleRounding::kPowerOfTwo);
      ASSERT_LE(amax * scale, format_max);
      ASSERT_GT(amax * scale * 2, format_max);
      ASSERT_EQ(float_bits(scale) & 0x7fffffu, 0u);
      ASSERT_EQ(scale * inverse_scale(scale), 1.0f);
      ASSERT_NEAR(amax * exact, format_max, format_max * 2e-7);
      ASSERT_EQ(compute_scale(amax, format_max, ScaleRounding::kPowerOfTwo, 3),
                scale / 8);  // the margin is in binary orders
    }
  }
}

}  // namespace
}  // namespace fp8amp::numerics
