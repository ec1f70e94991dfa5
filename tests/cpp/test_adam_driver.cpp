// The drivers of Adam: threads, skipped steps, scales and maxima.
#include <fp8amp/parallel.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "adam_parameter.h"
#include "kernels/adam_step.h"
#include "kernels/cpu/isa.h"

namespace fp8amp {
namespace {

using kernels::AdamArgs;
using kernels::AdamTensor;
using test::AdamParameterData;
using test::AdamTypes;
using test::default_args;
using test::Stored;

std::vector<float> normal(std::size_t n, float sigma, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> dist(0.0f, sigma);
  std::vector<float> x(n);
  for (float& v : x) v = dist(rng);
  return x;
}

constexpr AdamTypes kTypes[] = {test::kO2,
                                test::kO1,
                                test::kFloats,
                                test::kO2States,
                                {DType::kE4M3, DType::kE5M2, DType::kE4M3, DType::kE5M2},
                                {DType::kFloat16, DType::kBFloat16, DType::kE4M3, DType::kE4M3}};
constexpr std::size_t kSizes[] = {1, 30000, 3, 512, 513, 1, 16, 8192, 0, 9000, 7};

// Many tensors of all types and sizes.
std::vector<AdamParameterData> make_parameters(std::uint32_t seed) {
  std::vector<AdamParameterData> all;
  std::uint32_t id = 0;
  for (AdamTypes t : kTypes)
    for (std::size_t n : kSizes) {
      all.emplace_back(t, normal(n, 0.05f, seed + id));
      all.back().id = id++;
      if (id % 3 == 0) all.back().weight = Stored(id % 2 ? DType::kE4M3 : DType::kFloat16, n);
    }
  return all;
}
void set_gradients(std::vector<AdamParameterData>& all, float sigma, std::uint32_t seed) {
  for (AdamParameterData& x : all) {
    std::vector<float> g = normal(static_cast<std::size_t>(x.p.size()), sigma, seed + x.id);
    if (x.g.type == DType::kBFloat16)
      for (std::size_t i = 0; i < g.size(); ++i)
        kernels::store_element(x.g.bytes.data(), x.g.type, static_cast<std::int64_t>(i), g[i]);
    else
      x.g.assign(g);
  }
}
float step(std::vector<AdamParameterData>& all, AdamArgs args = default_args()) {
  std::vector<AdamTensor> tensors;
  for (AdamParameterData& x : all) tensors.push_back(x.tensor());
  args.tensors = tensors;
  float found_inf = -1;
  kernels::cpu::grad_amax(args, &found_inf);
  args.found_inf = &found_inf;
  kernels::cpu::adam(args);
  return found_inf;
}
bool same_bits(const AdamParameterData& a, const AdamParameterData& b) {
  const auto scalars = [](const AdamParameterData& x) {
    return std::vector<float>{x.p.scale_inv, x.m.scale_inv, x.v.scale_inv, x.amax[0],
                              x.amax[1],     x.amax[2],     x.step,        x.weight.scale_inv};
  };
  const auto sa = scalars(a), sb = scalars(b);
  return a.p.bytes == b.p.bytes && a.m.bytes == b.m.bytes && a.v.bytes == b.v.bytes &&
         a.g.bytes == b.g.bytes && a.weight.bytes == b.weight.bytes &&
         std::memcmp(sa.data(), sb.data(), sa.size() * sizeof(float)) == 0;
}

TEST(AdamDriver, ThreadsDoNotChangeAnyBit) {
  const int before = num_threads();
  std::vector<std::vector<AdamParameterData>> results;
  for (int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    auto all = make_parameters(1);
    for (int s = 0; s < 3; ++s) {
      set_gradients(all, 1e-3f, 100u * static_cast<std::uint32_t>(s));
      EXPECT_EQ(step(all), 0.0f);
    }
    results.push_back(std::move(all));
  }
  set_num_threads(before);
  for (std::size_t r = 1; r < results.size(); ++r)
    for (std::size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(same_bits(results[0][i], results[r][i])) << "run " << r << " tensor " << i;
}

TEST(AdamDriver, TensorsInAListEqualTensorsAlone) {
  auto together = make_parameters(5);
  set_gradients(together, 1e-2f, 9);
  auto alone = together;
  step(together);
  for (AdamParameterData& x : alone) {
    std::vector<AdamParameterData> one{x};
    step(one);
    EXPECT_TRUE(same_bits(one[0], together[x.id])) << x.id;
  }
}

// Each tensor and each of its three stores has a random stream of its own, new in every step.
TEST(AdamDriver, RandomStreams) {
  AdamArgs args = default_args();
  args.p_rounding = args.m_rounding = args.v_rounding = Rounding::kStochastic;
  AdamParameterData x(test::kO2, normal(1000, 0.05f, 1));
  x.id = 5;
  for (std::uint32_t t = 1; t <= 3; ++t) {
    x.g.assign(normal(1000, 1e-3f, 10 + t));
    x.amax[3] = x.g.amax();
    AdamParameterData y = x;
    const AdamTensor tensor = x.tensor(), copy = y.tensor();
    const kernels::AdamStep prepared = kernels::prepare_adam_step(copy, args.hyper, 1.0f);
    const auto key = [&](std::uint32_t stream) {
      return numerics::random_key(args.seed, t, 5, stream);
    };
    kernels::cpu::loops().adam({copy.p, copy.g, copy.m, copy.v, copy.p_type, copy.g_type,
                                copy.m_type, copy.v_type, prepared.scalars, args.p_rounding,
                                args.m_rounding, args.v_rounding, key(kernels::kAdamStream),
                                key(kernels::kSecondMomentStream), copy.n, 0});
    args.tensors = {&tensor, 1};
    kernels::cpu::adam(args);
    EXPECT_EQ(x.p.bytes, y.p.bytes);
    EXPECT_EQ(x.m.bytes, y.m.bytes);
    EXPECT_EQ(x.v.bytes, y.v.bytes);
  }
}

// A NaN or Inf in any gradient of any type leaves every byte, and says so.
TEST(AdamDriver, NonFiniteGradientSkipsEveryTensor) {
  for (AdamTypes t : kTypes)
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      auto all = make_parameters(2);
      for (int s = 0; s < 2; ++s)
        set_gradients(all, 1e-3f, 40u + static_cast<std::uint32_t>(s)), step(all);
      set_gradients(all, 1e-3f, 77);
      for (AdamParameterData& x : all)
        if (x.g.type == t.g && x.p.size() == 9000) {
          if (is_float8(x.g.type))
            x.g.bytes[8999] = 0x7f;
          else
            kernels::store_element(x.g.bytes.data(), x.g.type, 8999, bad);
        }
      const auto before = all;
      EXPECT_EQ(step(all), 1.0f);
      for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(all[i], before[i])) << i;
      set_gradients(all, 1e-3f, 78);
      EXPECT_EQ(step(all), 0.0f);
      EXPECT_FALSE(same_bits(all[1], before[1]));
    }
}

// So does a gradient that grad_scale makes non-finite, with found_inf or without.
TEST(AdamDriver, NonFiniteAfterGradScaleSkipsEveryTensor) {
  const float inf = std::numeric_limits<float>::infinity();
  for (float grad_scale : {1e10f, inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<AdamParameterData> all;
    for (AdamTypes t : {test::kO2, test::kFloats, test::kO1})
      all.emplace_back(t, normal(100, 0.05f, 3));
    all[1].g.assign(std::vector<float>(100, 1e30f));  // the others are 0
    const auto before = all;
    AdamArgs args = default_args();
    args.grad_scale = &grad_scale;
    EXPECT_EQ(step(all, args), 1.0f) << grad_scale;
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(all[i], before[i])) << i;
    std::vector<AdamTensor> tensors;
    for (AdamParameterData& x : all) tensors.push_back(x.tensor());
    args.tensors = tensors;
    kernels::cpu::adam(args);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(all[i], before[i])) << i;
  }
}

// The product of scale_inv and grad_scale may overflow where no gradient does.
TEST(AdamDriver, NoOverflowOfTheGradientsFactor) {
  for (std::uint8_t code : {0x00, 0x01}) {  // 0 and 2^-9
    AdamParameterData x(test::kO2, {0.5f, 1.0f});
    x.g.bytes = {code, 0x00};
    x.g.scale_inv = 0x1p120f;
    x.amax[3] = code ? 0x1p111f : 0.0f;
    const float grad_scale = 0x1p10f;
    AdamArgs args = default_args();
    const kernels::AdamTensor tensor = x.tensor();
    args.tensors = {&tensor, 1};
    args.grad_scale = &grad_scale;
    kernels::cpu::adam(args);
    EXPECT_NEAR(x.p[0], code ? 0.499f : 0.5f, 3e-4f);
    EXPECT_EQ(x.p[1], 1.0f);
    EXPECT_EQ(x.step, 1.0f);
  }
}

// A dequantised gradient that overflows FP32 counts as non-finite.
TEST(AdamDriver, OverflowOfScaleInvIsFound) {
  AdamParameterData x(test::kO2, {1.0f, 2.0f});
  x.g.assign({1.0f, -448.0f});
  x.g.scale_inv = 0x1p126f;
  const AdamTensor t = x.tensor();
  AdamArgs args = default_args();
  args.tensors = {&t, 1};
  float found_inf = 0;
  kernels::cpu::grad_amax(args, &found_inf);
  EXPECT_EQ(found_inf, 1.0f);
}

TEST(AdamDriver, MaximaAreThoseOfThePayload) {
  for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    auto all = make_parameters(3);
    AdamArgs args = default_args();
    args.p_rounding = args.m_rounding = args.v_rounding = rounding;
    for (int s = 0; s < 6; ++s) {
      set_gradients(all, s == 3 ? 10.0f : 1e-3f, 500u + static_cast<std::uint32_t>(s));
      step(all, args);
      for (const AdamParameterData& x : all) {
        EXPECT_EQ(x.amax[0], x.p.amax()) << x.id;
        EXPECT_EQ(x.amax[1], x.m.amax()) << x.id;
        EXPECT_EQ(x.amax[2], x.v.amax()) << x.id;
        EXPECT_EQ(x.amax[3], x.g.amax()) << x.id;
        EXPECT_EQ(x.step, float(s + 1));
      }
    }
  }
}

// The compute weight has the bits of a cast of the new master under its own scale, which is a power
// of two with no room for another one, and changes nothing else.
TEST(AdamDriver, ComputeWeightIsTheCastOfTheMaster) {
  for (AdamTypes types : kTypes)
    for (DType format : {DType::kE4M3, DType::kFloat16})
      for (std::size_t n : {1u, 511u, 4096u, 10001u}) {
        AdamParameterData x(types, normal(n, 0.05f, 1)), plain = x;
        x.weight = Stored(format, n);
        for (int s = 0; s < 3; ++s) {
          std::vector<AdamParameterData> both{x, plain};
          set_gradients(both, s == 1 ? 1.0f : 1e-3f, 20u + static_cast<std::uint32_t>(s));
          step(both);
          x = both[0], plain = both[1];
          AdamParameterData rest = x;
          rest.weight = Stored(DType::kE4M3, 0);
          EXPECT_TRUE(same_bits(rest, plain));
          const float scale = 1 / x.weight.scale_inv;
          EXPECT_EQ(scale, numerics::floor_power_of_two(scale));
          Stored expected(format, n);
          for (std::int64_t i = 0; i < x.p.size(); ++i)
            kernels::store_code(expected.bytes.data(), format, i, x.p[i], scale, Rounding::kNearest,
                                Overflow::kSaturate, 0);
          ASSERT_EQ(x.weight.bytes, expected.bytes) << name(format) << " " << n << " step " << s;
          EXPECT_LE(x.amax[0] * scale, format_max(format));
          EXPECT_GT(x.amax[0] * scale, format == DType::kE4M3 ? 448.0f / 8 : 0.0f);
        }
      }
}

TEST(AdamDriver, ScalesStayNormalNumbers) {
  for (AdamTypes t : {test::kO2, kTypes[4], kTypes[5]})
    for (float size : {0.0f, 1e-38f, 1e-30f, 1e-20f, 1e-6f, 1.0f, 1e10f, 1e18f, 1e25f, 1e35f}) {
      AdamParameterData x(t, normal(100, 0.1f, 1));
      if (t.g == DType::kBFloat16) t.g = x.g.type = DType::kFloat32, x.g.bytes.resize(400);
      for (int s = 0; s < 8; ++s) {
        std::vector<float> g = normal(100, 1.0f, 3u + static_cast<std::uint32_t>(s));
        for (float& v : g) v *= s % 3 == 1 ? 1e-3f : size;
        test::adam_step(x, g);
        for (float inv : {x.p.scale_inv, x.m.scale_inv, x.v.scale_inv}) {
          EXPECT_TRUE(std::isnormal(inv) && inv > 0)
              << "gradient " << size << " step " << s << ": " << inv;
          EXPECT_TRUE(std::isnormal(1 / inv));
        }
        for (std::int64_t i = 0; i < 100; ++i)
          ASSERT_TRUE(std::isfinite(x.p[i]) && std::isfinite(x.m[i]) && std::isfinite(x.v[i]))
              << size << " " << s;
      }
    }
}

TEST(AdamDriver, ZeroGradientsWithoutEps) {
  for (float eps : {0.0f, 1e-44f, 1e-38f})
    for (AdamTypes types : {test::kO1, test::kO2, test::kFloats}) {
      AdamArgs args = default_args();
      args.hyper.eps = eps;
      AdamParameterData x(types, {0.25f, 1.0f});
      for (int s = 0; s < 3; ++s) test::adam_step(x, {0.0f, 0.0f}, args);
      EXPECT_EQ(x.p[0], 0.25f) << eps;
      EXPECT_EQ(x.p[1], 1.0f) << eps;
    }
}

TEST(AdamDriver, EmptyList) {
  AdamArgs args = default_args();
  float found_inf = 5;
  kernels::cpu::grad_amax(args, &found_inf);
  EXPECT_EQ(found_inf, 0.0f);
  kernels::cpu::adam(args);
}

}  // namespace
}  // namespace fp8amp
