// torch.ops.fp8amp: quantize_blocks, dequantize_blocks, gemm_blocks.
#include "python/bindings/ops/convert.h"
#include "python/bindings/ops/on_device.h"

#include <tuple>

namespace fp8amp::bindings {
namespace {

ScaleGranularity to_granularity(const char* op, const char* argument, int64_t value) {
  if (value < 0 || value > 3)
    throw Error(std::string(op) + ": " + argument + " must be 0 to 3, got " +
                std::to_string(value));
  return static_cast<ScaleGranularity>(value);
}

// An output with its scales, or two empty tensors and an undefined one.
struct Output {
  TorchTensor payload, scale_inv;
  ScaledTensor tensor;
};
Output allocate(const char* op, const std::vector<int64_t>& shape, ScalarType format,
                ScaleGranularity granularity, bool wanted, const TorchTensor& like) {
  if (!wanted) return {empty({0}, format, like), empty({0}, ScalarType::Float, like), {}};
  Output r{empty(shape, format, like),
           empty(scale_inv_shape(granularity, shape), ScalarType::Float, like),
           {}};
  r.tensor =
      ScaledTensor(write(op, "out", r.payload), write(op, "scale_inv", r.scale_inv), granularity);
  return r;
}

std::tuple<TorchTensor, TorchTensor, TorchTensor, TorchTensor> quantize_blocks(
    const TorchTensor& x, const OptionalTensor& x_scale_inv, ScalarType format, int64_t granularity,
    bool rows, bool columns, int64_t scale_rounding, int64_t margin, int64_t overflow) {
  const char* op = "quantize_blocks";
  to_dtype(op, "format", format);
  const std::vector<int64_t> s = matrix_shape(op, "x", x);
  const ScaleGranularity g = to_granularity(op, "granularity", granularity);
  const Output out = allocate(op, s, format, g, rows, x),
               transposed = allocate(op, {s[1], s[0]}, format, g, columns, x);
  QuantizeBlocksOptions o;
  o.scale_rounding = to_scale_rounding(op, scale_rounding);
  o.margin = to_margin(margin);
  o.overflow = to_overflow(op, overflow);
  o.stream = stream(x);
  fp8amp::quantize_blocks(read_scaled(op, "x", x, x_scale_inv), out.tensor, transposed.tensor, o);
  return {out.payload, out.scale_inv, transposed.payload, transposed.scale_inv};
}

ScaledTensor read_blocks(const char* op, const char* argument, const TorchTensor& payload,
                         const TorchTensor& scale_inv, int64_t granularity) {
  const ScaledTensor t = read_scaled(op, argument, payload, scale_inv);
  return {t.payload(), t.scale_inv(), to_granularity(op, "granularity", granularity)};
}

TorchTensor dequantize_blocks(const TorchTensor& payload, const TorchTensor& scale_inv,
                              int64_t granularity, ScalarType dtype) {
  const char* op = "dequantize_blocks";
  to_dtype(op, "dtype", dtype);
  TorchTensor out = empty(shape(payload), dtype, payload);
  fp8amp::dequantize(read_blocks(op, "payload", payload, scale_inv, granularity),
                     write(op, "out", out), stream(payload));
  return out;
}

TorchTensor gemm_blocks(const TorchTensor& a, const TorchTensor& a_scale_inv, int64_t a_granularity,
                        const TorchTensor& b, const TorchTensor& b_scale_inv, int64_t b_granularity,
                        ScalarType dtype, const OptionalTensor& bias, bool fast_accumulation) {
  const char* op = "gemm_blocks";
  to_dtype(op, "dtype", dtype);
  const int64_t m = matrix_shape(op, "a", a)[0], n = matrix_shape(op, "b", b)[0];
  TorchTensor out = empty({m, n}, dtype, a);
  const Tensor bias_view = read(op, "bias", bias);
  GemmOptions options;
  options.transpose_b = true;
  options.fast_accumulation = fast_accumulation;
  options.stream = stream(a);
  if (bias) options.bias = &bias_view;
  fp8amp::gemm(read_blocks(op, "a", a, a_scale_inv, a_granularity),
               read_blocks(op, "b", b, b_scale_inv, b_granularity), write(op, "out", out), options);
  return out;
}

void implement(torch::stable::detail::StableLibrary& m) {
  m.impl("quantize_blocks", FP8AMP_BOX(quantize_blocks));
  m.impl("dequantize_blocks", FP8AMP_BOX(dequantize_blocks));
  m.impl("gemm_blocks", FP8AMP_BOX(gemm_blocks));
}

STABLE_TORCH_LIBRARY_FRAGMENT(fp8amp, m) {
  m.def(
      "quantize_blocks(Tensor x, Tensor? x_scale_inv, ScalarType format, int granularity, bool "
      "rows, bool columns, int scale_rounding, int margin, int overflow) -> (Tensor payload, "
      "Tensor "
      "scale_inv, Tensor payload_t, Tensor scale_inv_t)");
  m.def(
      "dequantize_blocks(Tensor payload, Tensor scale_inv, int granularity, ScalarType dtype) -> "
      "Tensor");
  m.def(
      "gemm_blocks(Tensor a, Tensor a_scale_inv, int a_granularity, Tensor b, Tensor b_scale_inv, "
      "int b_granularity, ScalarType dtype, Tensor? bias, bool fast_accumulation) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CUDA, m) { implement(m); }

}  // namespace
}  // namespace fp8amp::bindings
