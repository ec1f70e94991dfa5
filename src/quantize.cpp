// Casts: check once, pick the device.
#include "fp8amp/quantize.h"

#include "kernels/quantize.h"
#include "src/blocks.h"
#include "src/cast_arguments.h"
#include "src/check.h"
#include "src/device.h"

namespace fp8amp {
namespace {

constexpr auto kAny = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kE4M3,
                       DType::kE5M2};
constexpr auto kFormats = {DType::kE4M3, DType::kE5M2, DType::kFloat16};
constexpr auto kPlain = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

void check_output(const char* op, const char* name, const ScaledTensor& x, const ScaledTensor& out,
                  std::initializer_list<DType> formats) {
  check::scaled(op, "x", x, kAny);
  check::scaled(op, name, out, formats);
  if (!out.scaled()) check::fail(op, name, "have a scale_inv", "a plain tensor");
  check::shape(op, name, out.payload(), x.shape());
  check::device(op, name, out.payload(), x.device());
}

// `out` is all that is written.
void check_apart(const char* op, const ScaledTensor& x, const Tensor& out) {
  check::Memory all[] = {check::writes("out", out), check::reads("x", x.payload()),
                         check::reads("x", x.scale_inv(), ".scale_inv")};
  check::apart(op, all);
}

void check_column_sums(const char* op, const char* name, const ScaledTensor& x, const Tensor& out) {
  check::dim(op, "x", x.payload(), 2);
  check::dtype(op, name, out, {DType::kFloat32});
  check::shape(op, name, out, {x.shape()[1]});
  check::device(op, name, out, x.device());
}

kernels::QuantizeArgs make_args(const char* op, const ScaledTensor& x, const ScaledTensor& out,
                                const Tensor& transposed, const QuantizeOptions& options) {
  if (options.column_sums.defined()) check_column_sums(op, "column_sums", x, options.column_sums);
  kernels::QuantizeArgs a = cast_arguments(op, "out", out, options);
  if (transposed.defined()) add_transposed(op, "out", out, transposed, options, a);
  check_apart(op, "out", out, transposed, options,
              {check::reads("x", x.payload()), check::reads("x", x.scale_inv(), ".scale_inv")});
  if (options.column_sums.defined()) {
    a.column_sums = options.column_sums.mutable_data_as<float>();
    a.rows = x.shape()[0];
    a.cols = x.shape()[1];
  }
  a.x = x.payload().data();
  a.x_type = x.dtype();
  a.x_scale_inv = check::pointer(x.scale_inv());
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
  check_output("quantize", "out", x, out, kFormats);
  dispatch(make_args("quantize", x, out, {}, options), x.device());
}

void quantize_transpose(const ScaledTensor& x, const ScaledTensor& out, const Tensor& transposed,
                        const QuantizeOptions& options) {
  const char* op = "quantize_transpose";
  check_output(op, "out", x, out, {DType::kE4M3, DType::kE5M2});
  check::dim(op, "x", x.payload(), 2);
  check::defined(op, "transposed", transposed);
  dispatch(make_args(op, x, out, transposed, options), x.device());
}

void dequantize(const ScaledTensor& x, const Tensor& out, void* stream) {
  if (x.granularity() != ScaleGranularity::kTensor) return dequantize_blocks(x, out, stream);
  check::scaled("dequantize", "x", x, kAny);
  check::dtype("dequantize", "out", out, kPlain);
  check::shape("dequantize", "out", out, x.shape());
  check::device("dequantize", "out", out, x.device());
  check_apart("dequantize", x, out);
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
  check_apart("amax", x, out);
  const kernels::AmaxArgs args{
      x.payload().data(),           x.dtype(), x.numel(), check::pointer(x.scale_inv()),
      out.mutable_data_as<float>(), stream};
  const ScopedDevice current(x.device());
  switch (x.device().type) {
    case DeviceType::kCpu: return kernels::cpu::amax(args);
    case DeviceType::kCuda: return kernels::cuda::amax(args);
  }
}

void column_sums(const ScaledTensor& x, const Tensor& out, void* stream) {
  check::scaled("column_sums", "x", x, kAny);
  check_column_sums("column_sums", "out", x, out);
  check_apart("column_sums", x, out);
  const kernels::ColumnSumsArgs args{x.payload().data(),
                                     x.dtype(),
                                     check::pointer(x.scale_inv()),
                                     x.shape()[0],
                                     x.shape()[1],
                                     out.mutable_data_as<float>(),
                                     stream};
  const ScopedDevice current(x.device());
  switch (x.device().type) {
    case DeviceType::kCpu: return kernels::cpu::column_sums(args);
    case DeviceType::kCuda: return kernels::cuda::column_sums(args);
  }
}

void accumulate(const ScaledTensor& x, const ScaledTensor& sum, void* stream) {
  const char* op = "accumulate";
  check_output(op, "sum", x, sum, {DType::kE4M3, DType::kE5M2});
  check::positive(op, "sum.scale_inv", sum.scale_inv(), x.device());
  check::Memory all[] = {
      check::writes("sum", sum.payload()), check::writes("sum", sum.scale_inv(), ".scale_inv"),
      check::reads("x", x.payload()), check::reads("x", x.scale_inv(), ".scale_inv")};
  check::apart(op, all);
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
