// Adam: check once, pick the device.
#include "fp8amp/adam.h"

#include <cmath>
#include <vector>

#include "fp8amp/quantize.h"
#include "kernels/adam.h"
#include "src/check.h"
#include "src/device.h"

namespace fp8amp {
namespace {

constexpr const char* kOwner = "parameter";  // of the memory of a list, in errors

void check_gradient(const char* op, const ScaledTensor& grad, Device device) {
  check::scaled(op, "grad", grad,
                {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kE4M3, DType::kE5M2});
  check::device(op, "grad", grad.payload(), device);
}

void check_parameter(const char* op, const AdamParameter& p, Device device) {
  check_gradient(op, p.grad, device);
  check::dtype(op, "amax", p.amax, {DType::kFloat32});
  check::shape(op, "amax", p.amax, {4});
  check::device(op, "amax", p.amax, device);
}

// float32 as it is, anything else with a scale_inv that has a reciprocal.
void check_state(const char* op, const char* argument, const ScaledTensor& t,
                 std::initializer_list<DType> allowed) {
  check::scaled(op, argument, t, allowed);
  if (t.scaled() == (t.dtype() == DType::kFloat32))
    check::fail(op, argument, t.scaled() ? "have no scale_inv" : "have a scale_inv",
                std::string(t.scaled() ? "a scaled " : "a plain ") + name(t.dtype()) + " tensor");
  if (t.scaled())
    check::scale(op, (std::string(argument) + ".scale_inv").c_str(), t.scale_inv(), t.device());
}

// FP32 counts to 2^24. Read on the CPU alone, as scales are.
void check_step_count(const char* op, const Tensor& step, Device device) {
  check::scalar(op, "step", step, device);
  if (device.type != DeviceType::kCpu) return;
  const float t = *step.data_as<float>();
  if (!(t >= 0 && t < 0x1p24f) || t != std::floor(t))
    check::fail(op, "step", "be a whole number >= 0 and < 2^24", std::to_string(t));
}

void check_compute_weight(const char* op, const AdamParameter& p, Device device) {
  const char* argument = "compute_weight";
  check_state(op, argument, p.compute_weight, {DType::kE4M3, DType::kFloat16});
  check::shape(op, argument, p.compute_weight.payload(), p.param.shape());
  check::device(op, argument, p.compute_weight.payload(), device);
}

void check_level(const char* op, const AdamParameter& p, Level level) {
  const bool low = level != Level::kO1, has_weight = p.compute_weight.defined();
  check::dtype(op, "param", p.param.payload(), {DType::kFloat16});
  check::dtype(op, "exp_avg", p.exp_avg.payload(), {low ? DType::kE4M3 : DType::kFloat32});
  check::dtype(op, "exp_avg_sq", p.exp_avg_sq.payload(), {low ? DType::kFloat16 : DType::kFloat32});
  if (level == Level::kO3)
    check::dtype(op, "compute_weight", p.compute_weight.payload(), {DType::kE4M3});
  else if (has_weight)
    check::fail(op, "compute_weight", "be undefined below O3",
                p.compute_weight.payload().to_string());
}

void check_states(const char* op, const AdamParameter& p, Level level, Device device) {
  check_state(op, "param", p.param, {DType::kFloat32, DType::kFloat16, DType::kE4M3});
  check_state(op, "exp_avg", p.exp_avg, {DType::kFloat32, DType::kE4M3});
  check_state(op, "exp_avg_sq", p.exp_avg_sq,
              {DType::kFloat32, DType::kFloat16, DType::kE4M3, DType::kE5M2});
  const std::pair<const char*, const ScaledTensor*> all[] = {
      {"grad", &p.grad}, {"exp_avg", &p.exp_avg}, {"exp_avg_sq", &p.exp_avg_sq}};
  for (const auto& [name, t] : all) {
    check::shape(op, name, t->payload(), p.param.shape());
    check::device(op, name, t->payload(), device);
  }
  if (p.compute_weight.defined()) check_compute_weight(op, p, device);
  check_step_count(op, p.step, device);
  if (level != Level::kAny && p.param.scaled()) check_level(op, p, level);
}

void check_hyperparameters(const char* op, const AdamOptions& o) {
  const std::pair<const char*, double> not_negative[] = {
      {"lr", o.lr}, {"weight_decay", o.weight_decay}, {"eps", o.eps}};
  for (const auto& [name, value] : not_negative)
    if (!(value >= 0) || !std::isfinite(value))
      check::fail(op, name, "be finite and >= 0", std::to_string(value));
  for (int i = 0; i < 2; ++i) {
    const double b = o.betas[static_cast<std::size_t>(i)];
    if (!(b >= 0 && b < 1))
      check::fail(op, "betas[" + std::to_string(i) + "]", "be in [0, 1)", std::to_string(b));
  }
}

// Parameters and states, their scales, maxima and step counts lie apart from each other, from the
// gradients and from what `options` has, over the whole list.
void check_apart(const char* op, std::span<const AdamParameter> parameters,
                 const check::Memory& found_inf, const AdamOptions& o) {
  std::vector<check::Memory> all{found_inf, check::reads("grad_scale", o.grad_scale),
                                 check::reads("lr_tensor", o.lr_tensor)};
  all.reserve(all.size() + 12 * parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const auto add = [&](const char* argument, const ScaledTensor& t, auto access) {
      all.push_back(access(argument, t.payload(), "", index, kOwner));
      all.push_back(access(argument, t.scale_inv(), ".scale_inv", index, kOwner));
    };
    const AdamParameter& p = parameters[i];
    add("param", p.param, check::writes);
    add("grad", p.grad, check::reads);
    add("exp_avg", p.exp_avg, check::writes);
    add("exp_avg_sq", p.exp_avg_sq, check::writes);
    add("compute_weight", p.compute_weight, check::writes);
    all.push_back(check::writes("amax", p.amax, "", index, kOwner));
    all.push_back(check::writes("step", p.step, "", index, kOwner));
  }
  check::apart(op, all);
}

kernels::AdamTensor make_tensor(const AdamParameter& p, bool update) {
  const auto scale_inv = [&](const ScaledTensor& t) {
    return !t.scaled() ? nullptr
           : update    ? t.scale_inv().mutable_data_as<float>()
                       : const_cast<float*>(t.scale_inv().data_as<float>());
  };
  kernels::AdamTensor k{};
  k.g = p.grad.payload().data();
  k.g_type = p.grad.dtype();
  k.g_scale_inv = check::pointer(p.grad.scale_inv());
  k.amax = p.amax.mutable_data_as<float>();
  k.n = p.grad.numel();
  k.id = p.id;
  if (!update) return k;
  k.p = p.param.payload().mutable_data();
  k.m = p.exp_avg.payload().mutable_data();
  k.v = p.exp_avg_sq.payload().mutable_data();
  k.p_type = p.param.dtype();
  k.m_type = p.exp_avg.dtype();
  k.v_type = p.exp_avg_sq.dtype();
  k.p_scale_inv = scale_inv(p.param);
  k.m_scale_inv = scale_inv(p.exp_avg);
  k.v_scale_inv = scale_inv(p.exp_avg_sq);
  k.step = p.step.mutable_data_as<float>();
  if (p.compute_weight.defined()) {
    k.w = p.compute_weight.payload().mutable_data();
    k.w_type = p.compute_weight.dtype();
    k.w_scale_inv = scale_inv(p.compute_weight);
  }
  return k;
}

std::vector<kernels::AdamTensor> make_tensors(std::span<const AdamParameter> parameters,
                                              bool update) {
  std::vector<kernels::AdamTensor> tensors;
  tensors.reserve(parameters.size());
  for (const AdamParameter& p : parameters) tensors.push_back(make_tensor(p, update));
  return tensors;
}

// Everything that a step reads or writes; returns its device (without parameters that of
// found_inf).
Device check_step(const char* op, std::span<const AdamParameter> parameters, const AdamOptions& o) {
  check_hyperparameters(op, o);
  const Device device = !parameters.empty()     ? parameters.front().param.device()
                        : o.found_inf.defined() ? o.found_inf.device()
                                                : kCpu;
  for (const AdamParameter& p : parameters) {
    check_parameter(op, p, device);
    check_states(op, p, o.level, device);
  }
  if (o.lr_tensor.defined()) {
    check::scalar(op, "lr_tensor", o.lr_tensor, device);
    if (device.type == DeviceType::kCpu) check::finite(op, "lr", *o.lr_tensor.data_as<float>());
  }
  if (o.grad_scale.defined()) check::scalar(op, "grad_scale", o.grad_scale, device);
  if (o.found_inf.defined()) check::scalar(op, "found_inf", o.found_inf, device);
  return device;
}

kernels::AdamArgs make_args(std::span<const kernels::AdamTensor> tensors, const AdamOptions& o) {
  kernels::AdamArgs args{};
  args.tensors = tensors;
  args.hyper = {o.lr, o.betas[0], o.betas[1], o.eps, o.weight_decay, o.decay, o.maximize};
  args.lr = check::pointer(o.lr_tensor);
  args.p_rounding = o.master_rounding;
  args.m_rounding = o.moment_rounding;
  args.v_rounding = o.second_moment_rounding;
  args.seed = o.seed;
  args.grad_scale = check::pointer(o.grad_scale);
  args.found_inf = check::pointer(o.found_inf);
  args.stream = o.stream;
  return args;
}

void launch_grad_amax(const kernels::AdamArgs& args, float* found_inf, Device device) {
  const ScopedDevice current(device);
  switch (device.type) {
    case DeviceType::kCpu: return kernels::cpu::grad_amax(args, found_inf);
    case DeviceType::kCuda: return kernels::cuda::grad_amax(args, found_inf);
  }
}

void launch_adam(const kernels::AdamArgs& args, Device device) {
  const ScopedDevice current(device);
  switch (device.type) {
    case DeviceType::kCpu: return kernels::cpu::adam(args);
    case DeviceType::kCuda: return kernels::cuda::adam(args);
  }
}

}  // namespace

void grad_amax(std::span<const AdamParameter> parameters, const Tensor& found_inf, void* stream) {
  const char* op = "grad_amax";
  check::dtype(op, "found_inf", found_inf, {DType::kFloat32});
  const Device device = found_inf.device();
  check::scalar(op, "found_inf", found_inf, device);
  for (const AdamParameter& p : parameters) check_parameter(op, p, device);
  check_apart(op, parameters, check::writes("found_inf", found_inf), {});
  const auto tensors = make_tensors(parameters, false);
  kernels::AdamArgs args{};
  args.tensors = tensors;
  args.stream = stream;
  launch_grad_amax(args, found_inf.mutable_data_as<float>(), device);
}

void adam_update(std::span<const AdamParameter> parameters, const AdamOptions& o) {
  const char* op = "adam_update";
  const Device device = check_step(op, parameters, o);
  check_apart(op, parameters, check::reads("found_inf", o.found_inf), o);
  if (parameters.empty()) return;
  const auto tensors = make_tensors(parameters, true);
  launch_adam(make_args(tensors, o), device);
}

void adam_step(std::span<const AdamParameter> parameters, AdamOptions options) {
  const char* op = "adam_step";
  const Device device = check_step(op, parameters, options);
  check_apart(op, parameters, check::writes("found_inf", options.found_inf), options);
  if (!options.found_inf.defined()) {
    if (parameters.empty()) return;
    if (device.type == DeviceType::kCpu) options.found_inf = Tensor::allocate({}, DType::kFloat32);
    check::defined(op, "found_inf", options.found_inf);
  }
  float* found_inf = options.found_inf.mutable_data_as<float>();
  const auto tensors = make_tensors(parameters, true);
  const kernels::AdamArgs args = make_args(tensors, options);
  launch_grad_amax(args, found_inf, device);
  launch_adam(args, device);
}

AdamParameter make_adam_parameter(const ScaledTensor& param, const ScaledTensor& grad, Level level,
                                  std::uint32_t id) {
  const char* op = "make_adam_parameter";
  if (level == Level::kAny) check::fail(op, "level", "be O1, O2 or O3", "kAny");
  check_state(op, "param", param, {DType::kFloat32, DType::kFloat16, DType::kE4M3});
  check_gradient(op, grad, param.device());
  check::shape(op, "grad", grad.payload(), param.shape());
  const bool low = (level == Level::kO2 || level == Level::kO3) && param.scaled();
  const auto state = [&](DType format) {
    return low ? ScaledTensor::allocate(param.shape(), format, param.device())
               : ScaledTensor(Tensor::allocate(param.shape(), DType::kFloat32, param.device()));
  };
  AdamParameter p{param,
                  grad,
                  state(DType::kE4M3),
                  state(DType::kFloat16),
                  Tensor::allocate({4}, DType::kFloat32, param.device()),
                  Tensor::allocate({}, DType::kFloat32, param.device()),
                  id};
  amax(param, Tensor::view(p.amax.mutable_data(), DType::kFloat32, {}, param.device()));
  if (level == Level::kO3 && param.scaled()) {
    p.compute_weight = ScaledTensor::allocate(param.shape(), DType::kE4M3, param.device());
    quantize(param, p.compute_weight);
  }
  return p;
}

}  // namespace fp8amp
