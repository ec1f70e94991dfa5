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

// `clip`: the scales of `grads` are written too, and the values of those that have none.
void check_apart(const char* op, std::span<const ScaledTensor> grads, const Tensor& norm,
                 bool clip) {
  using check::reads, check::writes;
  std::vector<check::Memory> all;
  all.reserve(2 * grads.size() + 1);
  all.push_back(writes("norm", norm));
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const ScaledTensor& g = grads[i];
    const auto index = static_cast<std::int64_t>(i);
    all.push_back((clip && !g.scaled() ? writes : reads)("grads", g.payload(), "", index, nullptr));
    all.push_back((clip ? writes : reads)("grads", g.scale_inv(), ".scale_inv", index, nullptr));
  }
  check::apart(op, all);
}

void launch_norm(const std::vector<kernels::NormTensor>& tensors, const Tensor& norm,
                 void* stream) {
  const kernels::NormArgs args{tensors, norm.mutable_data_as<float>(), stream};
  const ScopedDevice current(norm.device());
  switch (norm.device().type) {
    case DeviceType::kCpu: return kernels::cpu::norm(args);
    case DeviceType::kCuda: return kernels::cuda::norm(args);
  }
}

}  // namespace

void grad_norm(std::span<const ScaledTensor> grads, const Tensor& norm, void* stream) {
  const char* op = "grad_norm";
  const auto tensors = make_tensors(op, grads, norm);
  check_apart(op, grads, norm, false);
  launch_norm(tensors, norm, stream);
}

void clip_grad_norm(std::span<const ScaledTensor> grads, float max_norm, const Tensor& norm,
                    void* stream) {
  const char* op = "clip_grad_norm";
  if (!(max_norm >= 0)) check::fail(op, "max_norm", "be >= 0", std::to_string(max_norm));
  const auto tensors = make_tensors(op, grads, norm);
  check_apart(op, grads, norm, true);
  for (const ScaledTensor& g : grads)
    (g.scaled() ? g.scale_inv() : g.payload())
        .mutable_data();  // refuses read-only views before any write
  launch_norm(tensors, norm, stream);
  const kernels::ClipArgs args{tensors, norm.data_as<float>(), max_norm, stream};
  const ScopedDevice current(norm.device());
  switch (norm.device().type) {
    case DeviceType::kCpu: return kernels::cpu::clip(args);
    case DeviceType::kCuda: return kernels::cuda::clip(args);
  }
}

}  // namespace fp8amp
