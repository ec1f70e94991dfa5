// Norm and clipping: check once, pick the device.
#include "fp8amp/norm.h"

#include <vector>

#include "kernels/norm.h"
#include "src/check.h"
#include "src/device.h"

namespace fp8amp {
namespace {

std::vector<kernels::NormTensor> make_tensors(const char* op, std::span<const ScaledTensor> grads,
                                              const Tensor& norm) {
  check::dtype(op, "norm", norm, {DType::kFloat32});
  check::scalar(op, "norm", norm, norm.device());
  std::vector<kernels::NormTensor> tensors;
  tensors.reserve(grads.size());
  for (const ScaledTensor& g : grads) {
    check::scaled(op, "grads", g,
                  {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kE4M3, DType::kE5M2});
    check::device(op, "grads", g.payload(), norm.device());
    tensors.push_back({const_cast<void*>(g.payload().data()), g.dtype(),
                       const_cast<float*>(check::pointer(g.scale_inv())), g.numel()});
  }
  return tensors;
}

}  // namespace

void grad_norm(std::span<const ScaledTensor> grads, const Tensor& norm, void* stream) {
  const auto tensors = make_tensors("grad_norm", grads, norm);
  const kernels::NormArgs args{tensors, norm.mutable_data_as<float>(), stream};
  const ScopedDevice current(norm.device());
  switch (norm.device().type) {
    case DeviceType::kCpu: return kernels::cpu::norm(args);
    case DeviceType::kCuda: return kernels::cuda::norm(args);
  }
}

void clip_grad_norm(std::span<const ScaledTensor> grads, float max_norm, const Tensor& norm,
                    void* stream) {
  if (!(max_norm >= 0))
    check::fail("clip_grad_norm", "max_norm", "be >= 0", std::to_string(max_norm));
  const auto tensors = make_tensors("clip_grad_norm", grads, norm);
  for (const ScaledTensor& g : grads)
    (g.scaled() ? g.scale_inv() : g.payload())
        .mutable_data();  // refuses read-only views before any write
  grad_norm(grads, norm, stream);
  const kernels::ClipArgs args{tensors, norm.data_as<float>(), max_norm, stream};
  const ScopedDevice current(norm.device());
  switch (norm.device().type) {
    case DeviceType::kCpu: return kernels::cpu::clip(args);
    case DeviceType::kCuda: return kernels::cuda::clip(args);
  }
}

}  // namespace fp8amp
