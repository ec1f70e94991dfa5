// Norms and activations with a cast: check once, pick the device.
#include "fp8amp/fused.h"

#include "kernels/fused.h"
#include "src/cast_arguments.h"
#include "src/check.h"
#include "src/device.h"

namespace fp8amp {
namespace {

using check::reads, check::writes;
using kernels::FusedOp;

constexpr auto kPlain = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
// Without a transposed copy an activation has no rows; short ones would leave threads idle.
constexpr std::int64_t kFlatCols = 2048;

void check_input(const char* op, const char* name, const Tensor& t, const Tensor& x) {
  check::dtype(op, name, t, {x.dtype()});
  check::device(op, name, t, x.device());
}

// A float32 vector beside x: gamma, mean, ...
void check_vector(const char* op, const char* name, const Tensor& t, std::int64_t n,
                  const Tensor& x) {
  check::dtype(op, name, t, {DType::kFloat32});
  check::shape(op, name, t, {n});
  check::device(op, name, t, x.device());
}

void check_norm_input(const char* op, const Tensor& x, const Tensor& gamma, float eps) {
  check::dtype(op, "x", x, kPlain);
  check::dim(op, "x", x, 2);
  if (x.size(1) == 0) check::fail(op, "x", "have at least one column", check::to_string(x.shape()));
  check_vector(op, "gamma", gamma, x.size(1), x);
  if (!(eps >= 0.0f)) check::fail(op, "eps", "be >= 0", std::to_string(eps));
}

// The output of `shape`, and all that follows from it and the options.
kernels::FusedArgs make_args(const char* op, FusedOp kind, const Tensor& x, const char* out_name,
                             const ScaledTensor& out, const std::vector<std::int64_t>& shape,
                             const Tensor& transposed, const QuantizeOptions& options) {
  check::scaled(op, out_name, out, {DType::kE4M3, DType::kE5M2});
  if (!out.scaled()) check::fail(op, out_name, "have a scale_inv", "a plain tensor");
  check::shape(op, out_name, out.payload(), shape);
  check::device(op, out_name, out.payload(), x.device());
  if (options.rounding != Rounding::kNearest)
    check::fail(op, "rounding", "be nearest", "stochastic");
  if (options.column_sums.defined())
    check::fail(op, "column_sums", "be undefined", options.column_sums.to_string());
  kernels::FusedArgs a{};
  a.op = kind;
  a.x = x.data();
  a.x_type = x.dtype();
  a.cast = cast_arguments(op, out_name, out, options);
  if (transposed.defined()) {
    add_transposed(op, out_name, out, transposed, options, a.cast);
  } else if (kind == FusedOp::kGelu || kind == FusedOp::kGeluBackward) {
    a.cast.cols = kFlatCols;
    a.cast.rows = (a.cast.n + kFlatCols - 1) / kFlatCols;
  } else {
    a.cast.rows = shape[0];
    a.cast.cols = shape[1];
  }
  return a;
}

void dispatch(const kernels::FusedArgs& args, Device device) {
  const ScopedDevice current(device);
  switch (device.type) {
    case DeviceType::kCpu: return kernels::cpu::fused_quantize(args);
    case DeviceType::kCuda: return kernels::cuda::fused_quantize(args);
  }
}

// centered: LayerNorm. mean is undefined for RMSNorm.
void norm_quantize(const char* op, bool centered, const Tensor& x, const Tensor& gamma,
                   const Tensor& beta, float eps, const ScaledTensor& out, const Tensor& mean,
                   const Tensor& rstd, const Tensor& transposed, const QuantizeOptions& options) {
  check_norm_input(op, x, gamma, eps);
  if (centered) check_vector(op, "mean", mean, x.size(0), x);
  if (beta.defined()) check_vector(op, "beta", beta, x.size(1), x);
  kernels::FusedArgs a =
      make_args(op, FusedOp::kNorm, x, "out", out, x.shape(), transposed, options);
  check_vector(op, "rstd", rstd, x.size(0), x);
  check_apart(op, "out", out, transposed, options,
              {reads("x", x), reads("gamma", gamma), reads("beta", beta), writes("mean", mean),
               writes("rstd", rstd)});
  a.gamma = gamma.data_as<float>();
  a.beta = check::pointer(beta);
  a.mean = check::mutable_pointer(mean);
  a.rstd = rstd.mutable_data_as<float>();
  a.eps = eps;
  dispatch(a, x.device());
}

// centered: LayerNorm. mean and dbeta are undefined for RMSNorm.
void norm_backward(const char* op, bool centered, const Tensor& dy, const Tensor& x,
                   const Tensor& mean, const Tensor& rstd, const Tensor& gamma, const Tensor& dx,
                   const Tensor& dgamma, const Tensor& dbeta, void* stream) {
  check_norm_input(op, x, gamma, 0.0f);
  if (centered) check_vector(op, "mean", mean, x.size(0), x);
  for (const auto& [name, t] : {std::pair{"dy", &dy}, {"dx", &dx}}) {
    check_input(op, name, *t, x);
    check::shape(op, name, *t, x.shape());
  }
  check_vector(op, "rstd", rstd, x.size(0), x);
  check_vector(op, "dgamma", dgamma, x.size(1), x);
  if (dbeta.defined()) check_vector(op, "dbeta", dbeta, x.size(1), x);
  check::Memory all[] = {reads("dy", dy),          reads("x", x),         reads("mean", mean),
                         reads("rstd", rstd),      reads("gamma", gamma), writes("dx", dx),
                         writes("dgamma", dgamma), writes("dbeta", dbeta)};
  check::apart(op, all);
  const kernels::NormBackwardArgs args{dy.data(),
                                       x.data(),
                                       x.dtype(),
                                       check::pointer(mean),
                                       rstd.data_as<float>(),
                                       gamma.data_as<float>(),
                                       dx.mutable_data(),
                                       dgamma.mutable_data_as<float>(),
                                       check::mutable_pointer(dbeta),
                                       x.size(0),
                                       x.size(1),
                                       stream};
  const ScopedDevice current(x.device());
  switch (x.device().type) {
    case DeviceType::kCpu: return kernels::cpu::norm_backward(args);
    case DeviceType::kCuda: return kernels::cuda::norm_backward(args);
  }
}

void check_even(const char* op, const Tensor& x) {
  check::dtype(op, "x", x, kPlain);
  check::dim(op, "x", x, 2);
  if (x.size(1) % 2 != 0)
    check::fail(op, "x", "have an even number of columns", check::to_string(x.shape()));
}

QuantizeOptions of_gradient(QuantizeOptions options) {
  options.overflow = Overflow::kNaN;
  return options;
}

}  // namespace

void layer_norm_quantize(const Tensor& x, const Tensor& gamma, const Tensor& beta, float eps,
                         const ScaledTensor& out, const Tensor& mean, const Tensor& rstd,
                         const Tensor& transposed, const QuantizeOptions& options) {
  norm_quantize("layer_norm_quantize", true, x, gamma, beta, eps, out, mean, rstd, transposed,
                options);
}

void rms_norm_quantize(const Tensor& x, const Tensor& gamma, float eps, const ScaledTensor& out,
                       const Tensor& rstd, const Tensor& transposed,
                       const QuantizeOptions& options) {
  norm_quantize("rms_norm_quantize", false, x, gamma, {}, eps, out, {}, rstd, transposed, options);
}

void gelu_quantize(const Tensor& x, GeluForm form, const ScaledTensor& out,
                   const Tensor& transposed, const QuantizeOptions& options) {
  const char* op = "gelu_quantize";
  check::dtype(op, "x", x, kPlain);
  kernels::FusedArgs a =
      make_args(op, FusedOp::kGelu, x, "out", out, x.shape(), transposed, options);
  check_apart(op, "out", out, transposed, options, {reads("x", x)});
  a.form = form;
  dispatch(a, x.device());
}

void swiglu_quantize(const Tensor& x, const ScaledTensor& out, const Tensor& transposed,
                     const QuantizeOptions& options) {
  const char* op = "swiglu_quantize";
  check_even(op, x);
  const kernels::FusedArgs a = make_args(op, FusedOp::kSwiGlu, x, "out", out,
                                         {x.size(0), x.size(1) / 2}, transposed, options);
  check_apart(op, "out", out, transposed, options, {reads("x", x)});
  dispatch(a, x.device());
}

void gelu_backward_quantize(const Tensor& dy, const Tensor& x, GeluForm form,
                            const ScaledTensor& dx, const Tensor& transposed,
                            const QuantizeOptions& options) {
  const char* op = "gelu_backward_quantize";
  check::dtype(op, "x", x, kPlain);
  check_input(op, "dy", dy, x);
  check::shape(op, "dy", dy, x.shape());
  kernels::FusedArgs a = make_args(op, FusedOp::kGeluBackward, x, "dx", dx, x.shape(), transposed,
                                   of_gradient(options));
  check_apart(op, "dx", dx, transposed, options, {reads("x", x), reads("dy", dy)});
  a.form = form;
  a.dy = dy.data();
  dispatch(a, x.device());
}

void swiglu_backward_quantize(const Tensor& dy, const Tensor& x, const ScaledTensor& dx,
                              const Tensor& transposed, const QuantizeOptions& options) {
  const char* op = "swiglu_backward_quantize";
  check_even(op, x);
  check_input(op, "dy", dy, x);
  check::shape(op, "dy", dy, {x.size(0), x.size(1) / 2});
  kernels::FusedArgs a = make_args(op, FusedOp::kSwiGluBackward, x, "dx", dx, x.shape(), transposed,
                                   of_gradient(options));
  check_apart(op, "dx", dx, transposed, options, {reads("x", x), reads("dy", dy)});
  a.dy = dy.data();
  dispatch(a, x.device());
}

void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                         const Tensor& gamma, const Tensor& dx, const Tensor& dgamma,
                         const Tensor& dbeta, void* stream) {
  norm_backward("layer_norm_backward", true, dy, x, mean, rstd, gamma, dx, dgamma, dbeta, stream);
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& gamma,
                       const Tensor& dx, const Tensor& dgamma, void* stream) {
  norm_backward("rms_norm_backward", false, dy, x, {}, rstd, gamma, dx, dgamma, {}, stream);
}

}  // namespace fp8amp
