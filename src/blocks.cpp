// Casts with a scale for each row or block: check once, pick the device.
#include "src/blocks.h"

#include "fp8amp/quantize.h"
#include "kernels/blocks.h"
#include "src/check.h"
#include "src/device.h"

namespace fp8amp {
namespace {

using check::reads, check::writes;

constexpr auto kPlain = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

void check_output(const char* argument, const ScaledTensor& x, const ScaledTensor& out,
                  const std::vector<std::int64_t>& shape) {
  const char* op = "quantize_blocks";
  check::blocks(op, argument, out);
  check::shape(op, argument, out.payload(), shape);
  check::device(op, argument, out.payload(), x.device());
}

void check_pair(const ScaledTensor& out, const ScaledTensor& transposed) {
  const char* op = "quantize_blocks";
  check::dtype(op, "transposed", transposed.payload(), {out.dtype()});
  if (transposed.granularity() != out.granularity())
    check::fail(op, "transposed", std::string("have, as out, ") + name(out.granularity()),
                name(transposed.granularity()));
}

void check_arguments(const ScaledTensor& x, const ScaledTensor& out, const ScaledTensor& transposed,
                     const QuantizeBlocksOptions& o) {
  const char* op = "quantize_blocks";
  check::scaled(op, "x", x, kPlain);
  check::dim(op, "x", x.payload(), 2);
  if (!out.defined() && !transposed.defined()) check::defined(op, "out", out.payload());
  if (out.defined()) check_output("out", x, out, x.shape());
  if (transposed.defined()) check_output("transposed", x, transposed, {x.shape()[1], x.shape()[0]});
  if (out.defined() && transposed.defined()) check_pair(out, transposed);
  check::margin(op, o.margin);
  if (o.found_inf.defined()) check::scalar(op, "found_inf", o.found_inf, x.device());
  check::Memory all[] = {reads("x", x.payload()),
                         reads("x", x.scale_inv(), ".scale_inv"),
                         writes("out", out.payload()),
                         writes("out", out.scale_inv(), ".scale_inv"),
                         writes("transposed", transposed.payload()),
                         writes("transposed", transposed.scale_inv(), ".scale_inv"),
                         writes("found_inf", o.found_inf)};
  check::apart(op, all);
}

kernels::BlockOutput output(const ScaledTensor& t) {
  if (!t.defined()) return {nullptr, nullptr};
  return {t.payload().mutable_data_as<std::uint8_t>(), t.scale_inv().mutable_data_as<float>()};
}

}  // namespace

const char* name(ScaleGranularity granularity) {
  switch (granularity) {
    case ScaleGranularity::kRow: return "a scale for each row";
    case ScaleGranularity::kBlock1x128: return "a scale for each 1x128 piece";
    case ScaleGranularity::kBlock128x128: return "a scale for each 128x128 block";
    default: return "a scale for the tensor";
  }
}

void quantize_blocks(const ScaledTensor& x, const ScaledTensor& out, const ScaledTensor& transposed,
                     const QuantizeBlocksOptions& options) {
  check_arguments(x, out, transposed, options);
  const ScaledTensor& given = out.defined() ? out : transposed;
  kernels::QuantizeBlocksArgs args{};
  args.x = x.payload().data();
  args.x_type = x.dtype();
  args.x_scale_inv = check::pointer(x.scale_inv());
  args.rows = x.shape()[0];
  args.cols = x.shape()[1];
  args.format = given.dtype();
  args.granularity = given.granularity();
  args.out = output(out);
  args.transposed = output(transposed);
  args.scale_rounding = options.scale_rounding;
  args.margin = options.margin;
  args.overflow = options.overflow;
  args.found_inf = check::mutable_pointer(options.found_inf);
  args.stream = options.stream;
  const ScopedDevice current(x.device());
  switch (x.device().type) {
    case DeviceType::kCpu: return kernels::cpu::quantize_blocks(args);
    case DeviceType::kCuda: return kernels::cuda::quantize_blocks(args);
  }
}

void dequantize_blocks(const ScaledTensor& x, const Tensor& out, void* stream) {
  const char* op = "dequantize";
  check::blocks(op, "x", x);
  check::dtype(op, "out", out, kPlain);
  check::shape(op, "out", out, x.shape());
  check::device(op, "out", out, x.device());
  check::Memory all[] = {writes("out", out), reads("x", x.payload()),
                         reads("x", x.scale_inv(), ".scale_inv")};
  check::apart(op, all);
  const kernels::DequantizeBlocksArgs args{x.payload().data_as<std::uint8_t>(),
                                           x.dtype(),
                                           x.scale_inv().data_as<float>(),
                                           x.granularity(),
                                           x.shape()[0],
                                           x.shape()[1],
                                           out.mutable_data(),
                                           out.dtype(),
                                           stream};
  const ScopedDevice current(x.device());
  switch (x.device().type) {
    case DeviceType::kCpu: return kernels::cpu::dequantize_blocks(args);
    case DeviceType::kCuda: return kernels::cuda::dequantize_blocks(args);
  }
}

}  // namespace fp8amp
