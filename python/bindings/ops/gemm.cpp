// torch.ops.fp8amp: gemm, gemm_, gemm_prefers_k_contiguous.
#include "python/bindings/ops/convert.h"
#include "python/bindings/ops/on_device.h"

namespace fp8amp::bindings {
namespace {

void run(const char* op, const TorchTensor& out, const TorchTensor& a,
         const TorchTensor& a_scale_inv, const TorchTensor& b, const TorchTensor& b_scale_inv,
         GemmOptions options, const OptionalTensor& bias) {
  const Tensor bias_view = read(op, "bias", bias);
  if (bias) options.bias = &bias_view;
  options.stream = stream(a);
  fp8amp::gemm(read_scaled(op, "a", a, a_scale_inv), read_scaled(op, "b", b, b_scale_inv),
               write(op, "out", out), options);
}

TorchTensor gemm(const TorchTensor& a, const TorchTensor& a_scale_inv, const TorchTensor& b,
                 const TorchTensor& b_scale_inv, bool transpose_a, bool transpose_b,
                 ScalarType dtype, const OptionalTensor& bias, bool fast_accumulation,
                 int64_t accumulation) {
  to_dtype("gemm", "dtype", dtype);
  const int64_t m = matrix_shape("gemm", "a", a)[transpose_a ? 1 : 0];
  const int64_t n = matrix_shape("gemm", "b", b)[transpose_b ? 0 : 1];
  TorchTensor out = empty({m, n}, dtype, a);
  GemmOptions options;
  options.transpose_a = transpose_a;
  options.transpose_b = transpose_b;
  options.fast_accumulation = fast_accumulation;
  options.accumulation = to_accumulation("gemm", accumulation);
  run("gemm", out, a, a_scale_inv, b, b_scale_inv, options, bias);
  return out;
}

void gemm_into(const TorchTensor& out, const TorchTensor& a, const TorchTensor& a_scale_inv,
               const TorchTensor& b, const TorchTensor& b_scale_inv, bool transpose_a,
               bool transpose_b, const OptionalTensor& bias, bool accumulate,
               bool fast_accumulation) {
  GemmOptions options;
  options.transpose_a = transpose_a;
  options.transpose_b = transpose_b;
  options.accumulate = accumulate;
  options.fast_accumulation = fast_accumulation;
  run("gemm_", out, a, a_scale_inv, b, b_scale_inv, options, bias);
}

bool prefers_k_contiguous(std::string device_type, int64_t device_index) {
  return fp8amp::gemm_prefers_k_contiguous(device(device_type, device_index));
}

void implement(torch::stable::detail::StableLibrary& m) {
  m.impl("gemm", FP8AMP_BOX(gemm));
  m.impl("gemm_", FP8AMP_BOX(gemm_into));
}

STABLE_TORCH_LIBRARY_FRAGMENT(fp8amp, m) {
  m.def(
      "gemm(Tensor a, Tensor a_scale_inv, Tensor b, Tensor b_scale_inv, bool transpose_a, bool "
      "transpose_b, ScalarType dtype, Tensor? bias, "
      "bool fast_accumulation, int accumulation) -> Tensor");
  m.def(
      "gemm_(Tensor(a!) out, Tensor a, Tensor a_scale_inv, Tensor b, Tensor b_scale_inv, bool "
      "transpose_a, bool transpose_b, Tensor? bias, "
      "bool accumulate, bool fast_accumulation) -> ()");
  m.def("gemm_prefers_k_contiguous(str device_type, int device_index) -> bool");
}
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CompositeExplicitAutograd, m) {
  m.impl("gemm_prefers_k_contiguous", TORCH_BOX(&prefers_k_contiguous));
}
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CUDA, m) { implement(m); }

}  // namespace
}  // namespace fp8amp::bindings
