// FP8 matrix product with FP32 accumulation: D[M, N] = op(A)[M, K] op(B)[K, N] * a_scale_inv *
// b_scale_inv + bias[N].
//
// With a scale for each row or block, the scales belong to op(A)[M, K] and to op(B)[K, N]
// transposed, [N, K], however these are stored. If one of them has blocks, the contraction is
// summed in pieces of 128:
//   D[m, n] = sum over pieces p, in their order, of (chain over k in p) * a_scale * b_scale,
// else D[m, n] = (chain over k) * a_scale * b_scale, multiplied from left to right in FP32.
//
// On the CPU each element is one chain of FP32 additions in the order of k, so its bits do not
// depend on vector width, blocking or thread count: a product of two FP8 values is exact in FP32.
// Bias and previous output are added in FP32 before the one final rounding.
//
// On a GPU cuBLASLt computes (FP8 tensor cores from compute capability 8.9, BF16 ones from 8.0 on,
// with one warning). The order of additions is its own, and a bias of another type than a 16-bit
// output may be rounded to that type first. FP8AMP_GEMM_TUNE=k times the k algorithms that cuBLASLt
// likes best before the first use of a shape. Before a stream capture, run the same products once
// on that stream. Row scales and blocks are cuBLASLt's own on compute capability 9.0 from 12.9 on
// (rows x rows, 1x128 x 1x128, 1x128 x 128x128 and the reverse, M in multiples of 4). Elsewhere row
// scales multiply the FP32 sums of an FP8 product, with the same values; operands with blocks are
// decoded to BF16, with one warning: exact for scales that are powers of two.
#pragma once
#include <fp8amp/numerics/hopper.h>
#include <fp8amp/scaled_tensor.h>

#include <cstdint>

namespace fp8amp {

struct GemmOptions {
  bool transpose_a = false;      // A is stored as [K, M]
  bool transpose_b = false;      // B is stored as [N, K]
  const Tensor* bias = nullptr;  // float32, float16 or bfloat16 [N]
  bool accumulate = false;       // out += product
  // GPUs: fewer accumulator bits, for fprop; on the CPU it matters to Accumulation::kHopper alone
  bool fast_accumulation = false;
  void* stream = nullptr;
  // kHopper: the accumulators of an H100 bit by bit, for operands with one scale, on the CPU alone
  // and slow: for studies
  Accumulation accumulation = Accumulation::kDefault;
};

// a, b: 2-D float8 (any pair of formats and of granularities); out: float32, bfloat16 or float16
// [M, N]; any sizes, 0 included. out must not overlap a, b, their scales or the bias.
FP8AMP_API void gemm(const ScaledTensor& a, const ScaledTensor& b, const Tensor& out,
                     const GemmOptions& options = {});

// The three products of a linear layer Y[M,N] = X[M,K] W[N,K]^T; they set transpose_a and
// transpose_b.
enum class Gemm : std::uint8_t {
  kFprop,  // a = X[M,K],  b = W[N,K]  -> Y[M,N]
  kDgrad,  // a = dY[M,N], b = W[N,K]  -> dX[M,K]
  kWgrad,  // a = dY[M,N], b = X[M,K]  -> dW[N,K]
};
FP8AMP_API void gemm(Gemm kind, const ScaledTensor& a, const ScaledTensor& b, const Tensor& out,
                     GemmOptions options = {});

// Whether gemm on `device` reads its operands in place only where k is contiguous (A stored as
// [M, K], B as [N, K]), and else copies them: true for FP8 tensor cores except those of compute
// capability 10.x. quantize_transpose then gives a linear layer what its other two products read.
FP8AMP_API bool gemm_prefers_k_contiguous(Device device);

}  // namespace fp8amp
