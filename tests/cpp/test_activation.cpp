// exp, GELU, SiLU and their derivatives against FP64: errors no larger than activation.h states.
#include <fp8amp/numerics/activation.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "scalar_loops.h"

namespace fp8amp::test {
namespace {

using namespace numerics;

constexpr float kInf = std::numeric_limits<float>::infinity();
const double kPi = std::acos(-1.0);

// Every stride-th float, both signs; Inf and NaN are skipped.
void for_floats(const std::function<void(float)>& body) {
  const std::uint64_t stride = quick() ? 40009 : 1999;
  for (std::uint64_t u = 0; u < 1ull << 32; u += stride) {
    const float x = numerics::bits_float(std::uint32_t(u));
    if (numerics::is_finite(x)) body(x);
  }
}

// |got - want| in units of the last place of want (of 2^-149 among subnormals).
double ulps(float got, double want) {
  const int exponent = want == 0.0 ? -126 : std::max(std::ilogb(want), -126);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 23);
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double gelu_oracle(double x, GeluForm form) {
  if (form == GeluForm::kErf) return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
  return x * sigmoid(2.0 * std::sqrt(2.0 / kPi) * (x + 0.044715 * x * x * x));
}
double gelu_slope_oracle(double x, GeluForm form) {
  if (form == GeluForm::kErf)
    return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * kPi);
  const double k = 2.0 * std::sqrt(2.0 / kPi), s = sigmoid(k * (x + 0.044715 * x * x * x));
  const double other = sigmoid(-k * (x + 0.044715 * x * x * x));
  return s + (other == 0.0 ? 0.0 : x * s * other * k * (1.0 + 3.0 * 0.044715 * x * x));
}

TEST(Activation, Exp) {
  double worst = 0;
  for_floats([&](float x) {
    const double want = std::exp(double(x));
    if (want > double(std::numeric_limits<float>::max()))
      ASSERT_EQ(numerics::exp(x), kInf) << x;
    else
      worst = std::max(worst, ulps(numerics::exp(x), want));
  });
  EXPECT_LE(worst, 1.0);
  EXPECT_GT(worst, 0.3);
  EXPECT_EQ(numerics::exp(0.0f), 1.0f);
  EXPECT_EQ(numerics::exp(-kInf), 0.0f);
  EXPECT_EQ(numerics::exp(kInf), kInf);
  EXPECT_TRUE(std::isnan(numerics::exp(NAN)));
}

TEST(Activation, Silu) {
  double worst = 0, worst_slope = 0;
  for_floats([&](float x) {
    const double s = sigmoid(x), c = sigmoid(-double(x));
    if (std::fabs(silu(x) - x * s) > 0x1p-142) worst = std::max(worst, ulps(silu(x), x * s));
    const double slope = s + (c == 0.0 ? 0.0 : x * s * c);
    worst_slope = std::max(worst_slope, std::fabs(silu_derivative(x) - slope));
  });
  EXPECT_LE(worst, 4.0);
  EXPECT_LE(worst_slope, 0x1p-21);
}

TEST(Activation, Gelu) {
  for (GeluForm form : {GeluForm::kErf, GeluForm::kTanh}) {
    double worst = 0, worst_slope = 0;
    for_floats([&](float x) {
      const double want = gelu_oracle(x, form);
      const double unit = std::max(std::fabs(double(x)) / 4, std::fabs(want));
      if (unit > 1e-37) worst = std::max(worst, std::fabs(gelu(x, form) - want) / unit);
      worst_slope =
          std::max(worst_slope, std::fabs(gelu_derivative(x, form) - gelu_slope_oracle(x, form)));
    });
    EXPECT_LE(worst, 0x1p-21) << int(form);
    EXPECT_LE(worst_slope, 0x1p-21) << int(form);
  }
}

TEST(Activation, Limits) {
  for (GeluForm form : {GeluForm::kErf, GeluForm::kTanh}) {
    EXPECT_EQ(gelu(kInf, form), kInf);
    EXPECT_TRUE(std::isnan(gelu(-kInf, form)));
    EXPECT_TRUE(std::isnan(gelu(NAN, form)));
    EXPECT_EQ(gelu_derivative(kInf, form), 1.0f);
    EXPECT_EQ(gelu_derivative(-kInf, form), 0.0f);
    EXPECT_TRUE(std::isnan(gelu_derivative(NAN, form)));
    EXPECT_EQ(gelu(0.0f, form), 0.0f);
    EXPECT_EQ(gelu_derivative(0.0f, form), 0.5f);
  }
  EXPECT_EQ(silu(kInf), kInf);
  EXPECT_TRUE(std::isnan(silu(-kInf)));
  EXPECT_EQ(silu_derivative(kInf), 1.0f);
  EXPECT_EQ(silu_derivative(-kInf), 0.0f);
}

}  // namespace
}  // namespace fp8amp::test
