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

// The order of the FP64 sums, the same on every backend and for any number of threads: element i of
// a chunk of kNormChunk goes to sum i % 8, the eight are added in order; then the sums of the
// chunks, in the order of the tensors, are added in the same way, chunk by chunk, until one is
// left.
inline constexpr std::int64_t kNormChunk = 4096;
inline constexpr int kNormSums = 8;

struct NormArgs {
  std::span<const NormTensor> tensors;
  float* norm;
  void* stream;
};

// Every tensor *= min(1, max_norm / (*norm + 1e-6)): scale_inv where there is one, else the values.
// Nothing changes where norm is NaN; where it is Inf, the factor is 0.
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
