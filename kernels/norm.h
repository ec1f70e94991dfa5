// Norm of a list of tensors, and scaling of gradients.
#pragma once
#include <fp8amp/dtype.h>

#include <cstdint>
#include <span>

namespace fp8amp::kernels {

struct NormTensor {
  void* x;
  DType x_type;
  float* scale_inv;  // may be null: 1
  std::int64_t n;
};

struct NormArgs {
  std::span<const NormTensor> tensors;
  float* norm;
  void* stream;
};

// Every tensor *= min(1, max_norm / (*norm + 1e-6)): scale_inv where there is one, else the values.
// Nothing changes where norm is not finite.
struct ClipArgs {
  std::span<const NormTensor> tensors;
  const float* norm;
  float max_norm;
  void* stream;
};

namespace cpu {
void norm(const NormArgs& args);
void clip(const ClipArgs& args);
}  // namespace cpu
namespace cuda {
void norm(const NormArgs& args);
void clip(const ClipArgs& args);
}  // namespace cuda

}  // namespace fp8amp::kernels
