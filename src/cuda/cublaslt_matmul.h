// One matrix product as cuBLASLt sees it: what is asked for, whether that is legal on a GPU, and
// the call. cuBLASLt accepts nearly any attribute when it is set and fails late or not at all, so
// the rules are here, as tables.
//
//   D[m, n] (row-major) = sum_k A[m, k] B[k, n] * scales + bias[n] (+ D)
//
// D row-major is D^T column-major, so cuBLASLt's A is our B and its B our A; k contiguous on both
// sides is its "TN" layout.
#pragma once
#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "fp8amp/error.h"
#include "fp8amp/numerics/scale_layout.h"
#include "src/cuda/context.h"

namespace fp8amp::gpu {

struct MatmulOperand {
  cudaDataType_t type = CUDA_R_8F_E4M3;  // E4M3 or E5M2, both BF16 or both FP16
  bool k_contiguous = true;
  std::int64_t leading_dimension = 0;  // elements from one row (or k) to the next
  ScaleGranularity scale_mode = ScaleGranularity::kTensor;  // layouts: numerics/scale_layout.h
  std::uint32_t alignment = 256;  // of the pointer, a power of two up to 256
  friend bool operator==(const MatmulOperand&, const MatmulOperand&) = default;
};

// Everything an algorithm depends on: the key of a plan.
struct MatmulProblem {
  std::int64_t m = 0, n = 0, k = 0;
  MatmulOperand a, b;
  cudaDataType_t d_type = CUDA_R_32F;  // FP32, BF16 or FP16
  std::int64_t d_leading_dimension = 0;
  std::uint32_t d_alignment = 256;
  bool has_bias = false;  // of bias_type(d_type), aligned to 16 bytes
  bool accumulate = false;
  bool fast_accumulation = false;  // FP8 only
  friend bool operator==(const MatmulProblem&, const MatmulProblem&) = default;
};

struct MatmulPointers {
  const void *a, *b;
  const float *a_scale_inv, *b_scale_inv;  // null: 1
  void* d;
  const void* bias;
};

bool is_fp8(cudaDataType_t type);
std::size_t size_of(cudaDataType_t type);

// ---- the rules ---------------------------------------------------------------------------------

// FP8 tensor cores behind cuBLASLt at all.
bool supports_fp8(int compute_capability);
// FP8 operands whose rows, not k, are contiguous.
bool supports_any_fp8_layout(int compute_capability);
// Pointers, leading dimensions and k (in bytes), and n (in elements), are multiples of this.
inline constexpr std::int64_t kFp8Multiple = 16;
// The type that the fused bias must have.
cudaDataType_t bias_type(cudaDataType_t d_type);
// "" or one sentence on why the scale modes cannot be had with these m and n.
std::string refuse_scales(const MatmulProblem& problem, int compute_capability,
                          std::size_t cublaslt_version);
// "" or one sentence on what is not possible on this GPU with this version of cuBLASLt.
std::string refusal(const MatmulProblem& problem, int compute_capability,
                    std::size_t cublaslt_version);

// ---- the call ----------------------------------------------------------------------------------

// Enqueues the product; false where cuBLASLt has no algorithm. Throws Error where refusal() is not
// empty.
[[nodiscard]] bool matmul(Context& context, const Lease& lease, const MatmulProblem& problem,
                          const MatmulPointers& pointers, cudaStream_t stream);
Error no_algorithm(const Context& context, const MatmulProblem& problem);

std::string describe(const MatmulProblem& problem);

}  // namespace fp8amp::gpu
