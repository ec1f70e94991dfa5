// torch.ops.fp8amp: layer_norm_quantize, rms_norm_quantize, gelu_quantize, swiglu_quantize and
// their backwards.
#include "python/bindings/ops/convert.h"
#include "python/bindings/ops/on_device.h"

#include <tuple>

namespace fp8amp::bindings {
namespace {

using Quantized = std::tuple<TorchTensor, TorchTensor, TorchTensor, TorchTensor>;

// The result of a cast: payload, its transpose (float8[0] unless wanted), scale_inv, amax.
struct Result {
  TorchTensor payload, transposed, scale_inv, amax;
  ScaledTensor out;
  Tensor transposed_out;
  QuantizeOptions options;

  Result(const char* op, const TorchTensor& x, const std::vector<int64_t>& shape, ScalarType format,
         const OptionalTensor& scale, int64_t scale_rounding, int64_t margin, bool transpose)
      : payload(empty(shape, format, x)),
        transposed(empty(
            transpose ? std::vector<int64_t>{shape.back(), shape.front()} : std::vector<int64_t>{0},
            format, x)),
        scale_inv(empty_scalar(x)),
        amax(empty_scalar(x)),
        out(write_scaled(op, "out", payload, scale_inv)) {
    if (transpose) transposed_out = write(op, "transposed", transposed);
    options.scale = read(op, "scale", scale);
    options.scale_rounding = to_scale_rounding(op, scale_rounding);
    options.margin = to_margin(margin);
    options.amax = write(op, "amax", amax);
    options.stream = stream(x);
  }
  Quantized get() const { return {payload, transposed, scale_inv, amax}; }
};

GeluForm form(bool tanh) { return tanh ? GeluForm::kTanh : GeluForm::kErf; }

std::tuple<TorchTensor, TorchTensor, TorchTensor, TorchTensor, TorchTensor, TorchTensor>
layer_norm_quantize(const TorchTensor& x, const TorchTensor& weight, const OptionalTensor& bias,
                    double eps, ScalarType format, const OptionalTensor& scale,
                    int64_t scale_rounding, int64_t margin, bool transpose) {
  const char* op = "layer_norm_quantize";
  to_dtype(op, "format", format);
  const std::vector<int64_t> s = matrix_shape(op, "x", x);
  Result r(op, x, s, format, scale, scale_rounding, margin, transpose);
  TorchTensor mean = empty({s[0]}, ScalarType::Float, x),
              rstd = empty({s[0]}, ScalarType::Float, x);
  fp8amp::layer_norm_quantize(read(op, "x", x), read(op, "gamma", weight), read(op, "beta", bias),
                              static_cast<float>(eps), r.out, write(op, "mean", mean),
                              write(op, "rstd", rstd), r.transposed_out, r.options);
  return {r.payload, r.transposed, r.scale_inv, r.amax, mean, rstd};
}

std::tuple<TorchTensor, TorchTensor, TorchTensor, TorchTensor, TorchTensor> rms_norm_quantize(
    const TorchTensor& x, const TorchTensor& weight, double eps, ScalarType format,
    const OptionalTensor& scale, int64_t scale_rounding, int64_t margin, bool transpose) {
  const char* op = "rms_norm_quantize";
  to_dtype(op, "format", format);
  const std::vector<int64_t> s = matrix_shape(op, "x", x);
  Result r(op, x, s, format, scale, scale_rounding, margin, transpose);
  TorchTensor rstd = empty({s[0]}, ScalarType::Float, x);
  fp8amp::rms_norm_quantize(read(op, "x", x), read(op, "gamma", weight), static_cast<float>(eps),
                            r.out, write(op, "rstd", rstd), r.transposed_out, r.options);
  return {r.payload, r.transposed, r.scale_inv, r.amax, rstd};
}

Quantized gelu_quantize(const TorchTensor& x, bool tanh, ScalarType format,
                        const OptionalTensor& scale, int64_t scale_rounding, int64_t margin,
                        bool transpose) {
  const char* op = "gelu_quantize";
  to_dtype(op, "format", format);
  const Result r(op, x, matrix_shape(op, "x", x), format, scale, scale_rounding, margin, transpose);
  fp8amp::gelu_quantize(read(op, "x", x), form(tanh), r.out, r.transposed_out, r.options);
  return r.get();
}

Quantized swiglu_quantize(const TorchTensor& x, ScalarType format, const OptionalTensor& scale,
                          int64_t scale_rounding, int64_t margin, bool transpose) {
  const char* op = "swiglu_quantize";
  to_dtype(op, "format", format);
  const std::vector<int64_t> s = matrix_shape(op, "x", x);
  const Result r(op, x, {s[0], s[1] / 2}, format, scale, scale_rounding, margin, transpose);
  fp8amp::swiglu_quantize(read(op, "x", x), r.out, r.transposed_out, r.options);
  return r.get();
}

Quantized gelu_backward_quantize(const TorchTensor& dy, const TorchTensor& x, bool tanh,
                                 ScalarType format, const OptionalTensor& scale,
                                 int64_t scale_rounding, int64_t margin, bool transpose) {
  const char* op = "gelu_backward_quantize";
  to_dtype(op, "format", format);
  const Result r(op, x, matrix_shape(op, "x", x), format, scale, scale_rounding, margin, transpose);
  fp8amp::gelu_backward_quantize(read(op, "dy", dy), read(op, "x", x), form(tanh), r.out,
                                 r.transposed_out, r.options);
  return r.get();
}

Quantized swiglu_backward_quantize(const TorchTensor& dy, const TorchTensor& x, ScalarType format,
                                   const OptionalTensor& scale, int64_t scale_rounding,
                                   int64_t margin, bool transpose) {
  const char* op = "swiglu_backward_quantize";
  to_dtype(op, "format", format);
  const Result r(op, x, matrix_shape(op, "x", x), format, scale, scale_rounding, margin, transpose);
  fp8amp::swiglu_backward_quantize(read(op, "dy", dy), read(op, "x", x), r.out, r.transposed_out,
                                   r.options);
  return r.get();
}

std::tuple<TorchTensor, TorchTensor, TorchTensor> layer_norm_backward(const TorchTensor& dy,
                                                                      const TorchTensor& x,
                                                                      const TorchTensor& mean,
                                                                      const TorchTensor& rstd,
                                                                      const TorchTensor& weight) {
  const char* op = "layer_norm_backward";
  const std::vector<int64_t> s = matrix_shape(op, "x", x);
  TorchTensor dx = empty(s, x.scalar_type(), x), dgamma = empty({s[1]}, ScalarType::Float, x),
              dbeta = empty({s[1]}, ScalarType::Float, x);
  fp8amp::layer_norm_backward(read(op, "dy", dy), read(op, "x", x), read(op, "mean", mean),
                              read(op, "rstd", rstd), read(op, "gamma", weight),
                              write(op, "dx", dx), write(op, "dgamma", dgamma),
                              write(op, "dbeta", dbeta), stream(x));
  return {dx, dgamma, dbeta};
}

std::tuple<TorchTensor, TorchTensor> rms_norm_backward(const TorchTensor& dy, const TorchTensor& x,
                                                       const TorchTensor& rstd,
                                                       const TorchTensor& weight) {
  const char* op = "rms_norm_backward";
  const std::vector<int64_t> s = matrix_shape(op, "x", x);
  TorchTensor dx = empty(s, x.scalar_type(), x), dgamma = empty({s[1]}, ScalarType::Float, x);
  fp8amp::rms_norm_backward(read(op, "dy", dy), read(op, "x", x), read(op, "rstd", rstd),
                            read(op, "gamma", weight), write(op, "dx", dx),
                            write(op, "dgamma", dgamma), stream(x));
  return {dx, dgamma};
}

void implement(torch::stable::detail::StableLibrary& m) {
  m.impl("layer_norm_quantize", FP8AMP_BOX(layer_norm_quantize));
  m.impl("rms_norm_quantize", FP8AMP_BOX(rms_norm_quantize));
  m.impl("gelu_quantize", FP8AMP_BOX(gelu_quantize));
  m.impl("swiglu_quantize", FP8AMP_BOX(swiglu_quantize));
  m.impl("gelu_backward_quantize", FP8AMP_BOX(gelu_backward_quantize));
  m.impl("swiglu_backward_quantize", FP8AMP_BOX(swiglu_backward_quantize));
  m.impl("layer_norm_backward", FP8AMP_BOX(layer_norm_backward));
  m.impl("rms_norm_backward", FP8AMP_BOX(rms_norm_backward));
}

STABLE_TORCH_LIBRARY_FRAGMENT(fp8amp, m) {
  m.def(
      "layer_norm_quantize(Tensor x, Tensor weight, Tensor? bias, float eps, ScalarType format, "
      "Tensor? scale, int scale_rounding, int margin, bool transpose) -> (Tensor payload, Tensor "
      "payload_t, Tensor scale_inv, Tensor amax, Tensor mean, Tensor rstd)");
  m.def(
      "rms_norm_quantize(Tensor x, Tensor weight, float eps, ScalarType format, Tensor? scale, int "
      "scale_rounding, int margin, bool transpose) -> (Tensor payload, Tensor payload_t, Tensor "
      "scale_inv, Tensor amax, Tensor rstd)");
  m.def(
      "gelu_quantize(Tensor x, bool tanh, ScalarType format, Tensor? scale, int scale_rounding, "
      "int margin, bool transpose) -> (Tensor payload, Tensor payload_t, Tensor scale_inv, Tensor "
      "amax)");
  m.def(
      "swiglu_quantize(Tensor x, ScalarType format, Tensor? scale, int scale_rounding, int margin, "
      "bool transpose) -> (Tensor payload, Tensor payload_t, Tensor scale_inv, Tensor amax)");
  m.def(
      "gelu_backward_quantize(Tensor dy, Tensor x, bool tanh, ScalarType format, Tensor? scale, "
      "int scale_rounding, int margin, bool transpose) -> (Tensor payload, Tensor payload_t, "
      "Tensor scale_inv, Tensor amax)");
  m.def(
      "swiglu_backward_quantize(Tensor dy, Tensor x, ScalarType format, Tensor? scale, int "
      "scale_rounding, int margin, bool transpose) -> (Tensor payload, Tensor payload_t, Tensor "
      "scale_inv, Tensor amax)");
  m.def(
      "layer_norm_backward(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor weight) -> "
      "(Tensor dx, Tensor dweight, Tensor dbias)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor rstd, Tensor weight) -> (Tensor dx, Tensor "
      "dweight)");
}
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CUDA, m) { implement(m); }

}  // namespace
}  // namespace fp8amp::bindings
