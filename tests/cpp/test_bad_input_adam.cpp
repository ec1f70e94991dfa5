// Adam refuses bad input, before anything is written.
#include <cmath>
#include <cstring>
#include <limits>

#include "bad_input.h"

namespace fp8amp {
namespace {

struct Adam : testing::Test {
  AdamParameter p =
      make_adam_parameter(scaled({8, 4}, DType::kFloat16), scaled({8, 4}), Level::kO2, 0);

  void expect_refused(AdamOptions options, const std::vector<std::string>& parts) {
    std::string before(static_cast<const char*>(p.param.payload().data()),
                       static_cast<std::size_t>(p.param.payload().nbytes()));
    const std::size_t maxima = p.amax.defined() ? static_cast<std::size_t>(p.amax.numel()) : 0;
    for (std::size_t i = 0; i < maxima; ++i) p.amax.mutable_data_as<float>()[i] = 5.0f;
    const float step = *p.step.data_as<float>();
    options.found_inf = scalar(7.0f);
    expect_error([&] { adam_step({&p, 1}, options); }, parts);
    EXPECT_EQ(std::memcmp(before.data(), p.param.payload().data(), before.size()), 0);
    EXPECT_EQ(std::memcmp(&step, p.step.data(), sizeof step), 0);
    for (std::size_t i = 0; i < maxima; ++i) EXPECT_EQ(p.amax.data_as<float>()[i], 5.0f);
    EXPECT_EQ(*options.found_inf.data_as<float>(), 7.0f);
  }
};

TEST_F(Adam, Hyperparameters) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_refused({.lr = nan}, {"adam_step", "lr", "nan"});
  expect_refused({.lr = -1e-3f}, {"adam_step", "lr", ">= 0", "-0.001"});
  expect_refused({.weight_decay = -0.1f}, {"weight_decay", ">= 0", "-0.1"});
  expect_refused({.betas = {1.0, 0.999}}, {"betas[0]", "1.0"});
  expect_refused({.betas = {0.9, -0.1}}, {"betas[1]", "-0.1"});
  expect_refused({.eps = -1.0f}, {"eps", "-1.0"});
  expect_refused({.eps = nan}, {"eps", "nan"});
  expect_refused({.weight_decay = INFINITY}, {"weight_decay", "inf"});
  expect_refused({.grad_scale = tensor({3})}, {"grad_scale", "[3]"});
}

TEST_F(Adam, States) {
  expect_refused({.level = Level::kO1}, {"exp_avg", "float32", "float8_e4m3"});
  AdamParameter good = p;
  p.exp_avg = scaled({4, 8});
  expect_refused({}, {"exp_avg", "[8, 4]", "[4, 8]"});
  p = good;
  p.grad = scaled({8, 5});
  expect_refused({}, {"grad", "[8, 4]", "[8, 5]"});
  p = good;
  p.amax = tensor({3});
  expect_refused({}, {"amax", "[4]", "[3]"});
  p = good;
  p.exp_avg_sq = ScaledTensor(tensor({8, 4}, DType::kFloat16));
  expect_refused({}, {"adam_step", "exp_avg_sq", "scale_inv"});
  p = good;
  p.grad = scaled({8, 4}, DType::kE4M3);
  p.grad = ScaledTensor(p.grad.payload(), tensor({}, DType::kFloat16));
  expect_refused({}, {"adam_step", "grad.scale_inv", "float16"});
}

TEST_F(Adam, ComputeWeight) {
  const AdamParameter good =
      make_adam_parameter(scaled({8, 4}, DType::kFloat16), scaled({8, 4}), Level::kO3, 0);
  p = good;
  expect_refused({.level = Level::kO2}, {"adam_step", "compute_weight", "undefined below O3"});
  p.compute_weight = {};
  expect_refused({.level = Level::kO3}, {"adam_step", "compute_weight", "undefined one"});
  p.compute_weight = scaled({8, 4}, DType::kFloat16);
  expect_refused({.level = Level::kO3}, {"compute_weight", "float8_e4m3", "float16"});
  p.compute_weight = scaled({8, 4}, DType::kE5M2);
  expect_refused({}, {"compute_weight", "float8_e4m3, float16", "float8_e5m2"});
  p.compute_weight = ScaledTensor(tensor({8, 4}, DType::kFloat16));
  expect_refused({}, {"compute_weight", "scale_inv", "plain float16"});
  p.compute_weight = scaled({4, 8});
  expect_refused({}, {"compute_weight", "[8, 4]", "[4, 8]"});
  p.compute_weight = with_scale_inv(good.compute_weight, 0.0f);
  expect_refused({}, {"compute_weight.scale_inv", "2^-126"});
  p.compute_weight = ScaledTensor(p.grad.payload(), scalar(1.0f));
  expect_refused({}, {"compute_weight of parameter 0", "overlap", "grad of parameter 0"});
  p = good;
  adam_step({&p, 1}, {.level = Level::kO3});
  EXPECT_EQ(*p.step.data_as<float>(), 1.0f);
}

TEST_F(Adam, FloatStatesHaveNoScale) {
  const ScaledTensor scaled_floats(tensor({8, 4}), scalar(0.5f));
  const AdamParameter good = make_adam_parameter(tensor({8, 4}), scaled({8, 4}), Level::kO1, 0);
  p = good, p.param = scaled_floats;
  expect_refused({}, {"param", "no scale_inv", "float32"});
  p = good, p.exp_avg = scaled_floats;
  expect_refused({}, {"exp_avg", "no scale_inv", "float32"});
  p = good, p.exp_avg_sq = scaled_floats;
  expect_refused({}, {"exp_avg_sq", "no scale_inv", "float32"});
}

TEST_F(Adam, ScalesHaveAReciprocal) {
  const AdamParameter good = p;
  for (float bad : {0.0f, -1.0f, NAN, INFINITY, 0x1p-127f, 0x1p127f}) {
    p = good, p.param = with_scale_inv(good.param, bad);
    expect_refused({}, {"param.scale_inv", "2^-126"});
    p = good, p.exp_avg = with_scale_inv(good.exp_avg, bad);
    expect_refused({}, {"exp_avg.scale_inv", "2^-126"});
    p = good, p.exp_avg_sq = with_scale_inv(good.exp_avg_sq, bad);
    expect_refused({}, {"exp_avg_sq.scale_inv", "2^-126"});
  }
}

TEST_F(Adam, StepCount) {
  for (const auto& [value, text] : {std::pair{-1.0f, "-1"},
                                    {NAN, "nan"},
                                    {1e20f, "1000000"},
                                    {0x1p24f, "16777216"},
                                    {1.5f, "whole number >= 0 and < 2^24, got 1.5"}}) {
    p.step = scalar(value);
    expect_refused({}, {"adam_step", "step", text});
  }
  p.step = scalar(0x1p24f - 1);
  adam_step({&p, 1}, {});
  EXPECT_EQ(*p.step.data_as<float>(), 0x1p24f);
}

TEST_F(Adam, MemoryIsNotShared) {
  const AdamParameter good = p;
  p.exp_avg = ScaledTensor(p.grad.payload(), scalar(1.0f));
  expect_refused({}, {"adam_step", "exp_avg of parameter 0", "overlap", "grad of parameter 0"});
  p = make_adam_parameter(tensor({8, 4}), tensor({8, 4}), Level::kO1, 0);
  p.exp_avg_sq = p.exp_avg;
  expect_refused({}, {"exp_avg", "overlap", "exp_avg_sq"});
  p = good;
  const AdamParameter twice[] = {p, p};
  expect_error([&] { adam_step(twice, {}); }, {"adam_step", "parameter 1", "parameter 0"});
  expect_error([&] { adam_update(twice, {}); }, {"adam_update", "parameter 1", "parameter 0"});
  EXPECT_EQ(*p.step.data_as<float>(), 0.0f);
  // two parameters with one tensor of what a step writes beside the values
  const ScaledTensor& grad = good.grad;
  const auto second = [&] {
    return make_adam_parameter(scaled({8, 4}, DType::kFloat16), grad, Level::kO2, 1);
  };
  const auto refused = [&](const AdamParameter& x, const std::string& argument) {
    const AdamParameter both[] = {p, x};
    expect_error([&] { adam_step(both, {}); }, {"adam_step", "overlap", argument});
    EXPECT_EQ(*p.step.data_as<float>(), 0.0f);
  };
  AdamParameter x = second();
  x.step = p.step, refused(x, "step of parameter");
  x = second(), x.amax = p.amax, refused(x, "amax of parameter");
  x = second(), x.param = ScaledTensor(x.param.payload(), p.param.scale_inv());
  refused(x, "param.scale_inv of parameter");
  x = second(), x.exp_avg = ScaledTensor(x.exp_avg.payload(), p.exp_avg.scale_inv());
  refused(x, "exp_avg.scale_inv of parameter");
  x = second(), x.grad = ScaledTensor(grad.payload(), p.exp_avg_sq.scale_inv());
  refused(x, "exp_avg_sq.scale_inv of parameter");
  // gradients are only read, and nothing is in an empty tensor
  AdamParameter other = make_adam_parameter(scaled({8, 4}, DType::kFloat16), p.grad, Level::kO2, 1);
  AdamParameter empty = make_adam_parameter(tensor({0}), tensor({0}), Level::kO1, 2);
  empty.param =
      Tensor::view(static_cast<char*>(p.param.payload().mutable_data()) + 4, DType::kFloat32, {0});
  const AdamParameter apart[] = {p, other, empty};
  adam_step(apart, {});
  EXPECT_EQ(*p.step.data_as<float>(), 1.0f);
}

TEST_F(Adam, OptionsAreNotShared) {
  const Tensor s = scalar(1.0f);
  const Tensor watched[] = {p.param.payload(),
                            p.param.scale_inv(),
                            p.grad.payload(),
                            p.grad.scale_inv(),
                            p.amax,
                            p.step,
                            s};
  const auto bytes = [&] {
    std::string all;
    for (const Tensor& t : watched)
      all.append(t.data_as<char>(), static_cast<std::size_t>(t.nbytes()));
    return all;
  };
  const std::string before = bytes();
  const auto refused = [&](const std::function<void()>& call,
                           const std::vector<std::string>& parts) {
    expect_error(call, parts);
    EXPECT_EQ(bytes(), before) << parts.front() << parts.back();
  };
  const Tensor in_amax = Tensor::view(p.amax.mutable_data(), DType::kFloat32, {});
  const std::pair<Tensor, std::string> shared[] = {
      {p.step, "step of parameter 0"},
      {in_amax, "amax of parameter 0"},
      {p.param.scale_inv(), "param.scale_inv of parameter 0"},
      {p.exp_avg.scale_inv(), "exp_avg.scale_inv of parameter 0"}};
  for (const auto& [t, name] : shared) {
    const AdamOptions flag{.found_inf = t}, scale{.grad_scale = t}, rate{.lr_tensor = t};
    for (const auto& [o, argument] :
         {std::pair{flag, "found_inf"}, {scale, "grad_scale"}, {rate, "lr_tensor"}}) {
      refused(
          [&, options = o] {
            adam_step({&p, 1}, options);
          },
          {"adam_step: ", argument, "overlap", name});
      refused(
          [&, options = o] {
            adam_update({&p, 1}, options);
          },
          {"adam_update: ", name + " must not overlap " + argument});
    }
  }
  refused(
      [&] {
        adam_step({&p, 1}, {.grad_scale = s, .found_inf = s});
      },
      {"adam_step: found_inf must not overlap grad_scale"});
  refused(
      [&] {
        adam_step({&p, 1}, {.lr_tensor = s, .found_inf = s});
      },
      {"adam_step: found_inf must not overlap lr_tensor"});
  refused([&] { adam_step({}, {.lr_tensor = s, .found_inf = s}); },
          {"adam_step: found_inf must not overlap lr_tensor"});
  refused(
      [&] {
        adam_step({&p, 1}, {.found_inf = p.grad.scale_inv()});
      },
      {"adam_step: found_inf must not overlap grad.scale_inv of parameter 0"});
  adam_update({&p, 1}, {.grad_scale = s, .found_inf = s});  // both are only read
}

TEST_F(Adam, MaximaOfGradientsAreNotShared) {
  AdamParameter other;
  other.grad = p.grad;
  const Tensor found_inf = scalar(7.0f);
  const auto refused = [&](const Tensor& flag, const std::string& name) {
    const AdamParameter both[] = {p, other};
    p.amax.mutable_data_as<float>()[3] = 5.0f;
    expect_error([&] { grad_amax(both, flag); }, {"grad_amax: ", "overlap", name});
    EXPECT_EQ(p.amax.data_as<float>()[3], 5.0f);
    EXPECT_EQ(*found_inf.data_as<float>(), 7.0f);
  };
  other.amax = p.amax, refused(found_inf, "amax of parameter 1");
  other.amax = Tensor::view(p.grad.payload().mutable_data(), DType::kFloat32, {4});
  refused(found_inf, "amax of parameter 1 must not overlap grad of parameter");
  other.amax = tensor({4});
  refused(Tensor::view(p.amax.mutable_data_as<float>() + 3, DType::kFloat32, {}),
          "amax of parameter 0");
  refused(p.grad.scale_inv(), "found_inf must not overlap grad.scale_inv");
  const AdamParameter both[] = {p, other};
  grad_amax(both, found_inf);
  EXPECT_EQ(*found_inf.data_as<float>(), 0.0f);
}

TEST_F(Adam, TheWholeListIsCheckedBeforeAnyWrite) {
  AdamParameter bad = make_adam_parameter(tensor({4}), tensor({4}), Level::kO1, 1);
  bad.exp_avg = {};
  p.amax.mutable_data_as<float>()[3] = 5.0f;
  const AdamParameter list[] = {p, bad};
  expect_error([&] { adam_step(list, {}); }, {"adam_step", "exp_avg", "undefined"});
  EXPECT_EQ(p.amax.data_as<float>()[3], 5.0f);
}

TEST_F(Adam, EmptyList) {
  const Tensor found_inf = scalar(7.0f);
  adam_step({}, {.found_inf = found_inf});
  EXPECT_EQ(*found_inf.data_as<float>(), 0.0f);
  adam_step({}, {});
  expect_error([&] { adam_step({}, {.lr = NAN}); }, {"adam_step", "lr", "nan"});
}

TEST(BadInput, MakeAdamParameter) {
  const ScaledTensor weight = scaled({4}, DType::kFloat16);
  const auto make = [](const ScaledTensor& param, const ScaledTensor& grad) {
    make_adam_parameter(param, grad, Level::kO2, 0);
  };
  expect_error([&] { make(weight, {}); }, {"make_adam_parameter", "grad", "undefined"});
  expect_error([&] { make(weight, scaled({5})); }, {"make_adam_parameter", "grad", "[4]", "[5]"});
  expect_error([&] { make(tensor({4}, DType::kFloat16), scaled({4})); },
               {"make_adam_parameter", "param", "scale_inv", "plain float16"});
  expect_error([&] { make({}, scaled({4})); }, {"make_adam_parameter", "param", "undefined"});
  expect_error([&] { make_adam_parameter(weight, scaled({4}), Level::kAny, 0); },
               {"make_adam_parameter", "level", "O1, O2 or O3", "kAny"});
}

}  // namespace
}  // namespace fp8amp
