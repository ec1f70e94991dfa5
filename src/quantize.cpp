// Casts: check once, pick the device.
#include "fp8amp/quantize.h"

#include "fp8amp/numerics/random.h"
#include "kernels/quantize.h"
#include "src/blocks.h"
#include "src/check.h"
#include "src/device.h"

namespace fp8amp {
namespace {

constexpr auto kAny = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kE4M3,
                       DType::kE5M2};
constexpr auto kFormats = {DType::kE4M3, DType::kE5M2, DType::kFloat16};
constexpr auto kPlain = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

void check_output(const char* op, const ScaledTensor& x, const ScaledTensor& out,
                  std::initializer_list<DType> formats) {
  check::scaled(op, "x", x, kAny);
  check::scaled(op, "out", out, formats);
  if (!out.scaled()) check::fail(op, "out", "have a scale_inv", "a plain tensor");
  check::shape(op, "out", out.payload(), x.shape());
  check::device(op, "out", out.payload(), x.device());
  check::no_overlap(op, "out", out.payload(), "x", x.payload());
}

kernels::ScaleSource check_scale_source(const char* op, const ScaledTensor& out,
                                        const QuantizeOptions& o) {
  const Device device = out.device();
  if (o.margin < -64 || o.margin > 64)
    check::fail(op, "margin", "be between -64 and 64", std::to_string(o.margin));
  if (int(o.scale.defined()) + int(o.history.defined()) + int(o.keep_scale) > 1)
    check::fail(op, "options", "name at most one of scale, history and keep_scale",
                "more than one");
  if (o.scale.defined()) check::scale(op, "scale", o.scale, device);
  if (o.keep_scale) check::scale(op, "out.scale_inv", out.scale_inv(), device);
  if (o.amax.defined()) check::scalar(op, "amax", o.amax, device);
  if (o.found_inf.defined()) check::scalar(op, "found_inf", o.found_inf, device);
  if (o.history.defined()) {
    check::dtype(op, "history", o.history, {DType::kFloat32});
    check::device(op, "history", o.history, device);
    if (o.history.dim() != 1 || o.history.numel() < 3)
      check::fail(op, "history", "be float32[window + 2] with window >= 1",
                  check::to_string(o.history.shape()));
  }
  return o.scale.defined()     ? kernels::ScaleSource::kGiven
         : o.history.defined() ? kernels::ScaleSource::kDelayed
         : o.keep_scale        ? kernels::ScaleSource::kKeep
                               : kernels::ScaleSource::kCurrent;
}

kernels::QuantizeArgs make_args(const ScaledTensor& x, const ScaledTensor& out,
                                const QuantizeOptions& o, kernels::ScaleSource source) {
  kernels::QuantizeArgs a{};
  a.x = x.payload().data();
  a.x_type = x.dtype();
  a.x_scale_inv = check::pointer(x.scale_inv());
  a.y = out.payload().mutable_data();
  a.format = out.dtype();
  a.scale_inv = out.scale_inv().mutable_data_as<float>();
  a.n = x.numel();
  a.source = source;
  a.scale = check::pointer(o.scale);
  a.history = check::mutable_pointer(o.history);
  a.history_length = o.history.defined() ? o.history.numel() - 2 : 0;
  a.update_history = o.update_history;
  a.scale_rounding = o.scale_rounding;
  a.margin = o.margin;
  a.rounding = o.rounding;
  a.overflow = o.overflow;
  a.key = numerics::random_key(o.seed, 0, 0);
  a.amax = check::mutable_pointer(o.amax);
  a.found_inf = check::mutable_pointer(o.found_inf);
  a.stream = o.stream;
  return a;
}

void dispatch(const kernels::QuantizeArgs& args, Device device) {
  const ScopedDevice current(device);
  switch (device.type) {
    case DeviceType::kCpu: return kernels::cpu::quantize(args);
    case DeviceType::kCuda: return kernels::cuda::quantize(args);
  }
}

}  // namespace

void quantize(const ScaledTensor& x, const ScaledTensor& out, const QuantizeOptions& options) {
  check_output("quantize", x, out, kFormats);
  const auto source = check_scale_source("quantize", out, options);
  dispatch(make_args(x, out, options, source), x.device());
}

void quantize_transpose(const ScaledTensor& x, const ScaledTensor& out, const Tensor& transposed,
                        const QuantizeOptions& options) {
  const char* op = "quantize_transpose";
  check_output(op, x, out, {DType::kE4M3, DType::kE5M2});
  check::dim(op, "x", x.payload(), 2);
  check::dtype(op, "transposed", transposed, {out.dtype()});
  check::shape(op, "transposed", transposed, {x.shape()[1], x.shape()[0]});
  check::device(op, "transposed", transposed, x.device());
  check::no_overlap(op, "transposed", transposed, "out", out.payload());
  check::no_overlap(op, "transposed", transposed, "x", x.payload());
  if (options.rounding != Rounding::kNearest)
    check::fail(op, "rounding", "be nearest", "stochastic");
  kernels::QuantizeArgs args = make_args(x, out, options, check_scale_source(op, out, options));
  args.transposed = transposed.mutable_data_as<std::uint8_t>();
  args.rows = x.shape()[0];
  args.cols = x.shape()[1];
  dispatch(args, x.device());
}

void dequantize(const ScaledTensor& x, const Tensor& out, void* stream) {
  if (x.granularity() != ScaleGranularity::kTensor) return dequantize_blocks(x, out, stream);
  check::scaled("dequantize", "x", x, kAny);
  check::dtype("dequantize", "out", out, kPlain);
  check::shape("dequantize", "out", out, x.shape());
  check::device("dequantize", "out", out, x.device());
  check::no_overlap("dequantize", "out", out, "x", x.payload());
  const kernels::DequantizeArgs args{
      x.payload().data(), x.dtype(), check::pointer(x.scale_inv()), out.mutable_data(), out.dtype(),
      x.numel(),          stream};
  const ScopedDevice current(x.device());
  switch (x.device().type) {
    case DeviceType::kCpu: return kernels::cpu::dequantize(args);
    case DeviceType::kCuda: return kernels::cuda::dequantize(args);
  }
}

void amax(const ScaledTensor& x, const Tensor& out, void* stream) {
  check::dtype("amax", "x", x.payload(), kAny);
  if (x.scaled()) check::scalar("amax", "x.scale_inv", x.scale_inv(), x.device());
  check::scalar("amax", "out", out, x.device());
  const kernels::AmaxArgs args{
      x.payload().data(),           x.dtype(), x.numel(), check::pointer(x.scale_inv()),
      out.mutable_data_as<float>(), stream};
  const ScopedDevice current(x.device());
  switch (x.device().type) {
    case DeviceType::kCpu: return kernels::cpu::amax(args);
    case DeviceType::kCuda: return kernels::cuda::amax(args);
  }
}

void accumulate(const ScaledTensor& x, const ScaledTensor& sum, void* stream) {
  check_output("accumulate", x, sum, {DType::kE4M3, DType::kE5M2});
  const kernels::AccumulateArgs args{x.payload().data(),
                                     x.dtype(),
                                     check::pointer(x.scale_inv()),
                                     sum.payload().mutable_data(),
                                     sum.dtype(),
                                     sum.scale_inv().mutable_data_as<float>(),
                                     x.numel(),
                                     stream};
  const ScopedDevice current(x.device());
  switch (x.device().type) {
    case DeviceType::kCpu: return kernels::cpu::accumulate(args);
    case DeviceType::kCuda: return kernels::cuda::accumulate(args);
  }
}

}  // namespace fp8amp
