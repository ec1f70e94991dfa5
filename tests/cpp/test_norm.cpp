// Norm and clipping of gradients.
#include <fp8amp/parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/element.h"
#include "kernels/norm.h"

namespace fp8amp {
namespace {

using kernels::NormTensor;

struct Grad {
  std::vector<std::uint8_t> bytes;
  DType type;
  float scale_inv;
  Grad(DType t, const std::vector<float>& x, float scale)
      : bytes(x.size() * std::size_t(size_in_bytes(t))), type(t), scale_inv(1 / scale) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto at = std::int64_t(i);
      if (is_float8(t))
        kernels::store_code(bytes.data(), t, at, x[i], scale, Rounding::kNearest, Overflow::kNaN,
                            0);
      else
        kernels::store_element(bytes.data(), t, at, x[i]);
    }
  }
  NormTensor tensor() {
    return {bytes.data(), type, is_float8(type) ? &scale_inv : nullptr,
            std::int64_t(bytes.size()) / size_in_bytes(type)};
  }
};

float norm_of(std::vector<Grad>& grads) {
  std::vector<NormTensor> tensors;
  for (Grad& g : grads) tensors.push_back(g.tensor());
  float norm = -1;
  kernels::cpu::norm({tensors, &norm, nullptr});
  return norm;
}
void clip(std::vector<Grad>& grads, float norm, float max_norm) {
  std::vector<NormTensor> tensors;
  for (Grad& g : grads) tensors.push_back(g.tensor());
  kernels::cpu::clip({tensors, &norm, max_norm, nullptr});
}
std::vector<float> normal(std::size_t n, float sigma, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> dist(0, sigma);
  std::vector<float> x(n);
  for (float& v : x) v = dist(rng);
  return x;
}

TEST(Norm, OfScaledGradientsFromDequantisedValues) {
  std::vector<Grad> grads{{DType::kE4M3, {3e-5f, 4e-5f}, 1e6f}, {DType::kE5M2, {0.0f}, 1.0f}};
  EXPECT_NEAR(norm_of(grads), 5e-5f, 5e-5f * 0.06f);
  std::vector<Grad> large{{DType::kE4M3, std::vector<float>(10000, 0.05f), 1e3f}};
  EXPECT_NEAR(norm_of(large), 5.0f, 5.0f * 0.06f);
}

TEST(Norm, DoesNotOverflowOrVanish) {
  std::vector<Grad> half{{DType::kFloat16, std::vector<float>(1000000, 1e4f), 1.0f}};
  EXPECT_FLOAT_EQ(norm_of(half), 1e7f);
  std::vector<Grad> huge{{DType::kFloat32, {3e30f, 4e30f}, 1.0f}},
      tiny{{DType::kFloat32, {3e-30f, 4e-30f}, 1.0f}};
  EXPECT_FLOAT_EQ(norm_of(huge), 5e30f);
  EXPECT_FLOAT_EQ(norm_of(tiny), 5e-30f);
  std::vector<Grad> far{{DType::kE4M3, {448.0f * 0x1p118f}, 0x1p-118f}};
  EXPECT_EQ(norm_of(far), 448.0f * 0x1p118f);
  std::vector<Grad> none;
  EXPECT_EQ(norm_of(none), 0.0f);
}

TEST(Norm, EqualBitsForEveryNumberOfThreads) {
  std::vector<Grad> grads;
  for (std::size_t n : {1, 65536, 65537, 200001, 0, 77})
    for (DType t : {DType::kE4M3, DType::kFloat32, DType::kBFloat16})
      grads.emplace_back(t, normal(n, 1e-3f, std::uint32_t(n) + 1), 4096.0f);
  const int before = num_threads();
  set_num_threads(1);
  const float one = norm_of(grads);
  double wanted = 0;
  for (Grad& g : grads)
    for (std::int64_t i = 0; i < g.tensor().n; ++i) {
      const double v = double(kernels::load_element(g.bytes.data(), g.type, i)) *
                       (is_float8(g.type) ? g.scale_inv : 1.0f);
      wanted += v * v;
    }
  EXPECT_FLOAT_EQ(one, float(std::sqrt(wanted)));
  for (int threads : {2, 3, 8}) {
    set_num_threads(threads);
    EXPECT_EQ(norm_of(grads), one);
  }
  set_num_threads(before);
}

TEST(Norm, NonFiniteGradientsStayNonFinite) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<Grad> grads{{DType::kFloat32, {1.0f, bad}, 1.0f}, {DType::kE4M3, {1.0f}, 1.0f}};
    EXPECT_FALSE(std::isfinite(norm_of(grads)));
    clip(grads, norm_of(grads), 1.0f);
    EXPECT_FALSE(std::isfinite(kernels::load_element(grads[0].bytes.data(), DType::kFloat32, 1)));
    EXPECT_FALSE(std::isfinite(norm_of(grads)));
  }
}

TEST(Clip, ScaledGradientsChangeTheirScaleOnly) {
  std::vector<Grad> grads{{DType::kE4M3, normal(5000, 1.0f, 1), 64.0f},
                          {DType::kFloat32, normal(70000, 1.0f, 2), 1.0f},
                          {DType::kBFloat16, normal(3, 1.0f, 3), 1.0f}};
  const auto before = grads;
  const float norm = norm_of(grads);
  clip(grads, norm, 1.0f);
  const float factor = 1.0f / (norm + 1e-6f);
  EXPECT_EQ(grads[0].bytes, before[0].bytes);
  EXPECT_EQ(grads[0].scale_inv, before[0].scale_inv * factor);
  for (std::int64_t i = 0; i < 70000; ++i)
    ASSERT_EQ(kernels::load_element(grads[1].bytes.data(), DType::kFloat32, i),
              kernels::load_element(before[1].bytes.data(), DType::kFloat32, i) * factor);
  EXPECT_NEAR(norm_of(grads), 1.0f, 1e-4f);
}

// torch's 1e-6, where it is as large as the norm itself.
TEST(Clip, AddsOneMillionthToTheNorm) {
  std::vector<Grad> grads{{DType::kE4M3, {1.0f}, 0x1p20f}, {DType::kFloat32, {0x1p-20f}, 1.0f}};
  clip(grads, 1e-6f, 1e-7f);
  EXPECT_FLOAT_EQ(grads[0].scale_inv, 0x1p-20f * 0.05f);
  EXPECT_FLOAT_EQ(kernels::load_element(grads[1].bytes.data(), DType::kFloat32, 0),
                  0x1p-20f * 0.05f);
}

TEST(Clip, LeavesWhatIsSmallEnough) {
  std::vector<Grad> grads{{DType::kE4M3, {3.0f, 4.0f}, 64.0f}, {DType::kFloat32, {0.5f}, 1.0f}};
  const auto before = grads;
  clip(grads, norm_of(grads), 100.0f);
  EXPECT_EQ(grads[0].scale_inv, before[0].scale_inv);
  EXPECT_EQ(grads[1].bytes, before[1].bytes);
}

// Finite gradients whose norm exceeds FLT_MAX do not go through unclipped.
TEST(Clip, NormBeyondFloat) {
  std::vector<Grad> grads{{DType::kFloat32, {3e38f, 3e38f, 3e38f, -3e38f}, 1.0f},
                          {DType::kE4M3, {1.0f}, 64.0f}};
  const float norm = norm_of(grads);
  EXPECT_EQ(norm, std::numeric_limits<float>::infinity());
  clip(grads, norm, 1.0f);
  EXPECT_LE(norm_of(grads), 1.0f);
  for (std::int64_t i = 0; i < 4; ++i)
    EXPECT_EQ(kernels::load_element(grads[0].bytes.data(), DType::kFloat32, i), 0.0f);
}

TEST(Clip, ScaleInvStaysNormal) {
  std::vector<Grad> grads{{DType::kE4M3, {1.0f}, 64.0f}};
  grads[0].scale_inv = 0x1p-120f;
  clip(grads, 1.0f, 0.0f);
  EXPECT_EQ(grads[0].scale_inv, numerics::kMinScale);
}

}  // namespace
}  // namespace fp8amp
