// Adam, norm and clipping of the CUDA backend, on the emulator: every bit is the CPU backend's.
#include <array>
#include <deque>
#include <optional>

#include "kernels/adam.h"
#include "kernels/norm.h"
#include "tests/emulator/cuda_data.h"
#include "tests/emulator/cuda_emu.h"
#include "tests/emulator/fake_runtime.h"

namespace fp8amp {
namespace {

using namespace kernels;
using test::Data;

struct Types {
  DType p, g, m, v;
};
constexpr DType k32 = DType::kFloat32, k16 = DType::kFloat16, kB16 = DType::kBFloat16,
                k43 = DType::kE4M3, k52 = DType::kE5M2;
constexpr Types kO1{k16, k43, k32, k32}, kO2{k16, k43, k43, k16}, kPlain{k32, k32, k32, k32};

// A parameter with its gradient and states.
struct Parameter {
  Data p, g, m, v;
  std::array<float, 4> scale_inv{0x1p-18f, 0.001f, 0.0002f, 0x1p-30f}, amax{};  // p, g, m, v
  float step = 3.0f, weight_scale_inv = 0.5f;
  std::uint32_t id;
  std::optional<Data> weight;  // that is computed with

  Parameter(const Types& t, std::int64_t n, std::uint32_t seed, std::int64_t offset = 0)
      : p(test::random_data(t.p, n, seed, t.p == k16 ? 3e4f : 0.1f, offset)),
        g(test::random_data(t.g, n, seed + 1, 1.0f, offset)),
        m(test::random_data(t.m, n, seed + 2, 1e-3f, offset)),
        v(test::random_data(t.v, n, seed + 3, t.v == k16 ? 6e4f : 1e-6f, offset)),
        id(seed) {
    for (std::int64_t i = 0; i < n; ++i)  // second moments are positive
      if (t.v == k32)
        v.as<float>()[i] = std::fabs(v.as<float>()[i]);
      else if (t.v == k16)
        v.as<std::uint16_t>()[i] &= 0x7fff;
      else
        v.as<std::uint8_t>()[i] &= 0x7f;
    amax = {largest(p, 0), largest(m, 2), largest(v, 3), 0.0f};
  }
  Parameter with_weight(DType type, std::int64_t offset = 0) const {
    Parameter r = *this;
    r.weight.emplace(type, p.size(), offset);
    return r;
  }
  float largest(const Data& d, std::size_t scale) const {
    float max = 0;
    for (std::int64_t i = 0; i < d.size(); ++i)
      max = std::max(max, std::fabs(load_element(d.get(), d.type(), i)));
    return d.type() == k32 ? max : max * scale_inv[scale];
  }
  AdamTensor tensor() {
    const auto scale = [&](const Data& d, std::size_t i) {
      return d.type() == k32 ? nullptr : &scale_inv[i];
    };
    AdamTensor t{};
    t.p = p.get(), t.g = g.get(), t.m = m.get(), t.v = v.get();
    t.p_type = p.type(), t.g_type = g.type(), t.m_type = m.type(), t.v_type = v.type();
    t.p_scale_inv = scale(p, 0);
    t.g_scale_inv = is_float8(g.type()) ? &scale_inv[1] : nullptr;
    t.m_scale_inv = scale(m, 2);
    t.v_scale_inv = scale(v, 3);
    t.amax = amax.data();
    t.step = &step;
    t.n = p.size();
    t.id = id;
    if (weight) {
      t.w = weight->get(), t.w_type = weight->type();
      t.w_scale_inv = &weight_scale_inv;
    }
    return t;
  }
};

void expect_equal(const Parameter& a, const Parameter& b) {
  EXPECT_EQ(a.p.difference(b.p), "equal");
  EXPECT_EQ(a.m.difference(b.m), "equal");
  EXPECT_EQ(a.v.difference(b.v), "equal");
  EXPECT_EQ(a.weight ? a.weight->difference(*b.weight) : "equal", "equal");
  EXPECT_EQ(a.weight_scale_inv, b.weight_scale_inv);
  EXPECT_EQ(a.scale_inv, b.scale_inv);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(test::same(a.amax[i], b.amax[i])) << i;
  EXPECT_EQ(a.step, b.step);
}

struct StepRun {
  AdamArgs args{};
  float found_inf = -1.0f;
  bool step_reads_found_inf = true;

  StepRun() {
    args.hyper = {.lr = 1e-3f, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1f};
    args.m_rounding = Rounding::kStochastic;
    args.seed = 42;
  }
  template <class Amax, class Step>
  void steps(std::deque<Parameter>& parameters, int count, Amax grad_amax, Step step) {
    std::vector<AdamTensor> tensors;
    for (Parameter& p : parameters) tensors.push_back(p.tensor());
    args.tensors = tensors;
    args.found_inf = step_reads_found_inf ? &found_inf : nullptr;
    for (int i = 0; i < count; ++i) grad_amax(args, &found_inf), step(args);
    args.tensors = {};
  }
  void expect_equal_steps(const std::deque<Parameter>& start, int count = 3) {
    std::deque<Parameter> host = start, device = start;
    steps(host, count, cpu::grad_amax, cpu::adam);
    const float host_found_inf = found_inf;
    steps(device, count, cuda::grad_amax, cuda::adam);
    EXPECT_EQ(host_found_inf, found_inf);
    for (std::size_t i = 0; i < host.size(); ++i) {
      SCOPED_TRACE("parameter " + std::to_string(i));
      expect_equal(host[i], device[i]);
    }
  }
};

TEST(CudaAdam, Levels) {
  for (const Types& types : {kO1, kO2, kPlain})
    for (std::int64_t n : {1, 15, 16, 17, 1000, 16384, 40000}) {
      SCOPED_TRACE(std::to_string(n) + " elements");
      StepRun().expect_equal_steps({Parameter(types, n, 7)});
    }
}

TEST(CudaAdam, LearningRateOnTheDevice) {
  const float lr = 3e-3f;
  std::deque<Parameter> given(1, Parameter(kO2, 500, 7)), read = given;
  StepRun a, b;
  a.args.hyper.lr = lr;
  b.args.lr = &lr;
  b.expect_equal_steps(given);
  a.steps(given, 2, cuda::grad_amax, cuda::adam);
  b.steps(read, 2, cuda::grad_amax, cuda::adam);
  expect_equal(given[0], read[0]);
}

TEST(CudaAdam, AnyTypes) {
  for (DType p : {k32, k16, k43})
    for (DType g : {k32, k16, kB16, k43, k52})
      for (DType m : {k32, k43})
        for (DType v : {k32, k16, k43, k52}) {
          SCOPED_TRACE(std::string(name(p)) + " " + name(g) + " " + name(m) + " " + name(v));
          StepRun().expect_equal_steps({Parameter({p, g, m, v}, 100, 9)}, test::quick() ? 1 : 2);
        }
}

TEST(CudaAdam, ComputeWeights) {
  for (const Types& types : {kO1, kO2, kPlain, Types{k43, k43, k43, k16}})
    for (DType weight : {k43, k16})
      for (std::int64_t n : {0, 1, 17, 1000, 20000})
        for (std::int64_t offset : {0, 1}) {
          if (test::quick() && n > 1000 && (offset == 1) == (weight == k43)) continue;
          SCOPED_TRACE(std::string(name(weight)) + ", " + std::to_string(n) + " elements");
          StepRun().expect_equal_steps({Parameter(types, n, 7).with_weight(weight, offset)});
        }
}

// Written by the pass itself, and not at all where a gradient is not finite.
TEST(CudaAdam, ComputeWeightIsTheCastOfTheMaster) {
  std::deque<Parameter> parameters{Parameter(kO2, 700, 1).with_weight(k43), Parameter(kO2, 9, 2)};
  StepRun run;
  run.steps(parameters, 2, cuda::grad_amax, cuda::adam);
  Parameter& x = parameters[0];
  const float scale = 1.0f / x.weight_scale_inv;
  EXPECT_EQ(scale, numerics::floor_power_of_two(scale));
  Data expected(k43, 700);
  for (std::int64_t i = 0; i < 700; ++i)
    store_code(expected.get(), k43, i, load_element(x.p.get(), k16, i) * x.scale_inv[0], scale,
               Rounding::kNearest, Overflow::kSaturate, 0);
  EXPECT_EQ(x.weight->difference(expected), "equal");
  parameters[1].g.as<std::uint8_t>()[8] = 0x7f;
  run.steps(parameters, 1, cuda::grad_amax, cuda::adam);
  EXPECT_EQ(x.weight->difference(expected), "equal");
  EXPECT_EQ(x.weight_scale_inv, 1.0f / scale);
}

// One launch for the maxima of the gradients, one for what is known before the pass, the pass.
TEST(CudaAdam, Launches) {
  for (std::uint32_t count : {1u, 148u, 300u}) {
    if (test::quick() && count == 148) continue;
    std::deque<Parameter> parameters;
    for (std::uint32_t i = 0; i < count; ++i) parameters.emplace_back(kO2, 20, i);
    fake_cuda::reset_counters();
    StepRun().steps(parameters, 1, cuda::grad_amax, cuda::adam);
    EXPECT_EQ(fake_cuda::counters().memsets, 1) << count;
    EXPECT_EQ(fake_cuda::counters().launches, count == 300 ? 4 : 3) << count;
  }
}

TEST(CudaAdam, RoundingsAndRules) {
  for (const Types& types : {kO1, kO2})
    for (Rounding p : {Rounding::kNearest, Rounding::kStochastic})
      for (Rounding m : {Rounding::kNearest, Rounding::kStochastic})
        for (Rounding v : {Rounding::kNearest, Rounding::kStochastic})
          for (bool l2 : {false, true}) {
            StepRun run;
            run.args.p_rounding = p, run.args.m_rounding = m, run.args.v_rounding = v;
            run.args.hyper.decay =
                l2 ? numerics::WeightDecay::kL2 : numerics::WeightDecay::kDecoupled;
            run.args.hyper.maximize = l2;
            run.expect_equal_steps({Parameter(types, 333, 11)});
          }
}

// More tensors than a launch takes, empty ones among them, and unaligned ones.
TEST(CudaAdam, ManyTensors) {
  std::deque<Parameter> parameters;
  for (std::uint32_t i = 0; i < (test::quick() ? 350 : 1030); ++i) {
    parameters.emplace_back(i % 3 == 0   ? kPlain
                            : i % 3 == 1 ? kO1
                                         : kO2,
                            i % 10 == 4 ? 0 : 50 + i % 50, 100 * i, i % 2);
    if (i % 4 == 0) parameters.back().weight.emplace(k43, parameters.back().p.size());
  }
  StepRun().expect_equal_steps(parameters, 1);
}

TEST(CudaAdam, NonFiniteGradientSkipsAll) {
  std::deque<Parameter> parameters;
  for (std::uint32_t i = 0; i < 3; ++i) parameters.emplace_back(kO2, 500, i);
  parameters[1].g.as<std::uint8_t>()[77] = 0x7f;
  const Parameter before = parameters[0];
  StepRun run;
  run.expect_equal_steps(parameters);
  EXPECT_EQ(run.found_inf, 1.0f);
  std::deque<Parameter> device = parameters;
  run.steps(device, 1, cuda::grad_amax, cuda::adam);
  EXPECT_EQ(device[0].p.difference(before.p), "equal");
  EXPECT_EQ(device[0].step, before.step);
}

// grad_scale makes one gradient of many infinite, in the first launch or in the last one.
TEST(CudaAdam, NonFiniteByItsScaleSkipsAll) {
  const std::uint32_t count =
      test::quick() ? 300 : 520;  // more than a launch of Adam's, of the maxima's
  const std::pair<float, std::size_t> cases[] = {
      {0x1p127f, 5}, {0x1p127f, count - 5}, {INFINITY, 5}, {NAN, count - 5}};
  for (const auto& [grad_scale, bad] : cases) {
    if (test::quick() && (bad == 5) == std::isfinite(grad_scale)) continue;
    std::deque<Parameter> parameters;
    for (std::uint32_t i = 0; i < count; ++i) parameters.emplace_back(kPlain, 20, i);
    parameters[bad].g.as<float>()[7] = 1e10f;
    StepRun run;
    run.args.grad_scale = &grad_scale;
    run.step_reads_found_inf = bad != 5;
    run.expect_equal_steps(parameters, 1);
    EXPECT_EQ(run.found_inf, 1.0f);
  }
}

// A gradient that was multiplied by -1.
TEST(CudaAdam, NegativeScaleOfAGradient) {
  Parameter p(kO2, 400, 5);
  p.scale_inv[1] = -p.scale_inv[1];
  StepRun().expect_equal_steps({p});
  std::deque<Parameter> host{p}, opposite{p};
  opposite[0].scale_inv[1] = -p.scale_inv[1];
  StepRun().steps(host, 1, cpu::grad_amax, cpu::adam);
  StepRun().steps(opposite, 1, cpu::grad_amax, cpu::adam);
  EXPECT_GT(host[0].amax[3], 0.0f);
  EXPECT_EQ(host[0].amax[3], opposite[0].amax[3]);
  EXPECT_EQ(host[0].scale_inv[2], opposite[0].scale_inv[2]);
}

TEST(CudaAdam, NanStatesAndHugeGradients) {
  const float grad_scale = 0x1p90f;
  Parameter p(kO2, 400, 5);
  p.m.as<std::uint8_t>()[5] = 0x7f;
  p.v.as<std::uint16_t>()[9] = 0x7e00;
  StepRun run;
  run.args.grad_scale = &grad_scale;
  run.expect_equal_steps({p, Parameter(kO1, 400, 6), Parameter(kPlain, 400, 8)});
}

TEST(CudaAdam, AnySchedule) {
  emu::for_each_schedule([&] {
    StepRun().expect_equal_steps(
        {Parameter(kO2, 40000, 1).with_weight(k43), Parameter(kPlain, 20, 2)}, 1);
  });
}

// ---- norm and clipping
std::vector<NormTensor> norm_tensors(std::deque<Data>& data, std::deque<float>& scales) {
  std::vector<NormTensor> tensors;
  for (std::size_t i = 0; i < data.size(); ++i)
    tensors.push_back({data[i].get(), data[i].type(),
                       is_float8(data[i].type()) ? &scales[i] : nullptr, data[i].size()});
  return tensors;
}

void expect_equal_norm(const std::deque<Data>& start, float max_norm, float scale_inv = 0.01f) {
  const std::deque<float> scales(start.size(), scale_inv);
  std::deque<Data> host = start, device = start;
  std::deque<float> host_scales = scales, device_scales = scales;
  const auto a = norm_tensors(host, host_scales), b = norm_tensors(device, device_scales);
  float host_norm = -1, device_norm = -1;
  cpu::norm({a, &host_norm, nullptr});
  cuda::norm({b, &device_norm, nullptr});
  EXPECT_TRUE(test::same(host_norm, device_norm)) << host_norm << " and " << device_norm;
  cpu::clip({a, &host_norm, max_norm, nullptr});
  cuda::clip({b, &device_norm, max_norm, nullptr});
  EXPECT_EQ(host_scales, device_scales);
  for (std::size_t i = 0; i < host.size(); ++i)
    EXPECT_EQ(host[i].difference(device[i]), "equal") << i;
}

TEST(CudaNorm, TypesAndSizes) {
  for (DType type : {k32, k16, kB16, k43, k52})
    for (std::int64_t n : {0, 1, 7, 8, 9, 4095, 4096, 4097, 20000}) {
      SCOPED_TRACE(std::string(name(type)) + ", " + std::to_string(n));
      expect_equal_norm({test::random_data(type, n, 3)}, 1e-3f);
    }
}

TEST(CudaNorm, ManyTensors) {
  std::deque<Data> data;
  for (std::uint32_t i = 0; i < 300; ++i)
    data.push_back(test::random_data(i % 3 ? k43 : i % 2 ? k32 : kB16, i % 7 == 2 ? 0 : 10 * i, i));
  for (float max_norm : {0.0f, 0.5f, 1e9f}) expect_equal_norm(data, max_norm);
}

TEST(CudaNorm, ClippedScalesStayNormal) {
  expect_equal_norm({test::random_data(k43, 100, 1)}, 1e-12f, 0x1p-120f);
}

TEST(CudaNorm, ClippingAddsOneMillionthToTheNorm) {
  Data tiny(k32, 1);
  tiny.as<float>()[0] = 0x1p-20f;
  expect_equal_norm({tiny}, 1e-7f);
}

TEST(CudaNorm, ClippedScalesKeepTheirSign) {
  expect_equal_norm({test::random_data(k43, 100, 1)}, 0.1f, -0.5f);
  EXPECT_EQ(numerics::multiplied_scale_inv(-3.0f, 0.5f), -1.5f);
  EXPECT_EQ(numerics::multiplied_scale_inv(-0x1p-120f, 0x1p-10f), -0x1p-126f);
  EXPECT_EQ(numerics::multiplied_scale_inv(0x1p-120f, 0x1p-10f), 0x1p-126f);
}

TEST(CudaNorm, NotFinite) {
  std::deque<Data> data{test::random_data(k32, 100, 1), test::random_data(k43, 100, 2)};
  test::add_specials(data[0]);
  expect_equal_norm(data, 0.1f);
}

// Squares that add up to the very middle between two floats, squared, and seven that are lost one
// by one behind it: added first they would tip it over.
TEST(CudaNorm, OrderOfTheSums) {
  Data x(k32, 17);
  auto* v = x.as<float>();
  double rest = 0x1p-23 + 0x1p-48;  // (1 + 2^-24)^2 - 1
  v[0] = 1.0f;
  for (int i : {8, 16}) {
    const auto root = std::nextafter(static_cast<float>(std::sqrt(rest)), 0.0f);
    v[i] = root, rest -= double(root) * root;
  }
  for (int i = 1; i < 8; ++i) v[i] = 0.94f * 0x1p-27f;
  float norm = -1;
  const std::vector<NormTensor> tensors{{x.get(), k32, nullptr, 17}};
  cuda::norm({tensors, &norm, nullptr});
  EXPECT_EQ(norm, 1.0f);
  expect_equal_norm({x}, 0.5f);
}

// Sums of more chunks than a chunk takes.
TEST(CudaNorm, TwoLevelsOfSums) {
  std::deque<Data> data;
  for (std::uint32_t i = 0; i < 4100; ++i) data.push_back(test::random_data(k32, 3, i));
  expect_equal_norm(data, 0.1f);
}

}  // namespace
}  // namespace fp8amp
