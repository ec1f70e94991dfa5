// Adam: check once, pick the device.
#include "fp8amp/adam.h"

#include <cmath>

#include "fp8amp/quantize.h"
#include "kernels/adam.h"
#include "src/check.h"

namespace fp8amp {
namespace {

void check_parameter(const char* op, const AdamParameter& p, Device device) {
  check::scaled(op, "grad", p.grad,
                {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kE4M3, DType::kE5M2});
  check::device(op, "grad", p.grad.payload(), device);
  check::dtype(op, "amax", p.amax, {DType::kFloat32});
  check::shape(op, "amax", p.amax, {4});
  check::device(op, "amax", p.amax, device);
}

void check_states(const char* op, const AdamParameter& p, Level level, Device device) {
  check::scaled(op, "param", p.param, {DType::kFloat32, DType::kFloat16, DType::kE4M3});
  check::scaled(op, "exp_avg", p.exp_avg, {DType::kFloat32, DType::kE4M3});
  check::scaled(op, "exp_avg_sq", p.exp_avg_sq,
                {DType::kFloat32, DType::kFloat16, DType::kE4M3, DType::kE5M2});
  const std::pair<const char*, const ScaledTensor*> all[] = {
      {"grad", &p.grad}, {"exp_avg", &p.exp_avg}, {"exp_avg_sq", &p.exp_avg_sq}};
  for (const auto& [name, t] : all) {
    check::shape(op, name, t->payload(), p.param.shape());
    check::device(op, name, t->payload(), device);
  }
  check::scalar(op, "step", p.step, device);
  for (const ScaledTensor* t : {&p.param, &p.exp_avg_sq})
    if (t->dtype() == DType::kFloat16 && !t->scaled())
      check::fail(op, t == &p.param ? "param" : "exp_avg_sq", "have a scale_inv",
                  "a plain float16 tensor");
  if (level == Level::kAny || !p.param.scaled()) return;
  const bool o2 = level == Level::kO2;
  check::dtype(op, "param", p.param.payload(), {DType::kFloat16});
  check::dtype(op, "exp_avg", p.exp_avg.payload(), {o2 ? DType::kE4M3 : DType::kFloat32});
  check::dtype(op, "exp_avg_sq", p.exp_avg_sq.payload(), {o2 ? DType::kFloat16 : DType::kFloat32});
}

void check_hyperparameters(const char* op, const AdamOptions& o) {
  check::finite(op, "lr", o.lr);
  check::finite(op, "weight_decay", o.weight_decay);
  if (!(o.eps >= 0) || !std::isfinite(o.eps))
    check::fail(op, "eps", "be >= 0", std::to_string(o.eps));
  for (int i = 0; i < 2; ++i) {
    const double b = o.betas[static_cast<std::size_t>(i)];
    if (!(b >= 0 && b < 1))
      check::fail(op, "betas[" + std::to_string(i) + "]", "be in [0, 1)", std::to_string(b));
  }
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
  return k;
}

std::vector<kernels::AdamTensor> make_tensors(std::span<const AdamParameter> parameters,
                                              bool update) {
  std::vector<kernels::AdamTensor> tensors;
  tensors.reserve(parameters.size());
  for (const AdamParameter& p : parameters) tensors.push_back(make_tensor(p, update));
  return tensors;
}

}  // namespace

void grad_amax(std::span<const AdamParameter> parameters, const Tensor& found_inf, void* stream) {
  const char* op = "grad_amax";
  check::dtype(op, "found_inf", found_inf, {DType::kFloat32});
  const Device device = found_inf.device();
  check::scalar(op, "found_inf", found_inf, device);
  for (const AdamParameter& p : parameters) check_parameter(op, p, device);
  const auto tensors = make_tensors(parameters, false);
  kernels::AdamArgs args{};
  args.tensors = tensors;
  args.stream = stream;
  switch (device.type) {
    case DeviceType::kCpu: return kernels::cpu::grad_amax(args, found_inf.mutable_data_as<float>());
    case DeviceType::kCuda:
      return kernels::cuda::grad_amax(args, found_inf.mutable_data_as<float>());
  }
}

void adam_update(std::span<const AdamParameter> parameters, const AdamOptions& o) {
  const char* op = "adam_update";
  check_hyperparameters(op, o);
  if (parameters.empty()) return;
  const Device device = parameters.front().param.device();
  for (const AdamParameter& p : parameters) {
    check_parameter(op, p, device);
    check_states(op, p, o.level, device);
  }
  if (o.grad_scale.defined()) check::scalar(op, "grad_scale", o.grad_scale, device);
  if (o.found_inf.defined()) check::scalar(op, "found_inf", o.found_inf, device);
  const auto tensors = make_tensors(parameters, true);
  kernels::AdamArgs args{};
  args.tensors = tensors;
  args.hyper = {o.lr, o.betas[0], o.betas[1], o.eps, o.weight_decay, o.decay, o.maximize};
  args.p_rounding = o.master_rounding;
  args.m_rounding = o.moment_rounding;
  args.v_rounding = o.second_moment_rounding;
  args.seed = o.seed;
  args.grad_scale = check::pointer(o.grad_scale);
  args.found_inf = check::pointer(o.found_inf);
  args.stream = o.stream;
  switch (device.type) {
    case DeviceType::kCpu: return kernels::cpu::adam(args);
    case DeviceType::kCuda: return kernels::cuda::adam(args);
  }
}

void adam_step(std::span<const AdamParameter> parameters, AdamOptions options) {
  if (parameters.empty()) return;
  if (!options.found_inf.defined())
    options.found_inf = Tensor::allocate({}, DType::kFloat32, parameters.front().param.device());
  grad_amax(parameters, options.found_inf, options.stream);
  adam_update(parameters, options);
}

AdamParameter make_adam_parameter(const ScaledTensor& param, const ScaledTensor& grad, Level level,
                                  std::uint32_t id) {
  const char* op = "make_adam_parameter";
  check::scaled(op, "param", param, {DType::kFloat32, DType::kFloat16, DType::kE4M3});
  const bool low = level == Level::kO2 && param.scaled();
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
  return p;
}

}  // namespace fp8amp
