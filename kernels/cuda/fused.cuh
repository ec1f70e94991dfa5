// Norms and activations with a cast. A warp takes a row, a thread 16 neighbouring elements a turn:
// the partial sums that numerics/normalize.h fixes are those of its threads. With a transposed copy
// the blocks go over tiles instead.
#pragma once
#include "kernels/cuda/quantize_transpose.cuh"
#include "kernels/fused.h"

namespace fp8amp::kernels::cuda {

inline constexpr int kWarps = kThreads / 32;  // of a block

struct FusedParams {
  GeluForm form;
  const void* x;
  const void* dy;
  const float* gamma;
  const float* beta;
  float* mean;
  float* rstd;
  float eps;
  DType format;
  bool aligned;         // 16-byte accesses along a row, of every tensor
  bool measure;         // of two launches the first: mean, rstd and amax, no codes
  TransposeParams out;  // cast.in.n: elements
};

// ---- sums over a row
template <int kHalf>
__device__ __forceinline__ void add_halves(float (&v)[kVector]) {
#pragma unroll
  for (int i = 0; i < kHalf; ++i) v[i] = v[i] + v[i + kHalf];
  if constexpr (kHalf > 1) add_halves<kHalf / 2>(v);
}
__device__ __forceinline__ float add_row_sums(Vector& part) {
  add_halves<kVector / 2>(part.v);
  float sum = part.v[0];
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1)
    sum = sum + __shfl_xor_sync(kAllLanes, sum, offset);
  return sum;
}
// body(column, count) for this thread's elements of a row of `length`.
template <class Body>
__device__ __forceinline__ void for_row(std::int64_t length, const Body& body) {
  static_assert(numerics::kRowSums == 32 * kVector);
  for (std::int64_t column = std::int64_t(threadIdx.x % 32) * kVector; column < length;
       column += numerics::kRowSums)
    body(column, length - column);
}

struct RowStatistics {
  float mean, rstd;
};
template <DType X>
__device__ __forceinline__ RowStatistics measure_row(const FusedParams& p, std::int64_t row) {
  const std::int64_t n = p.out.cols;
  RowStatistics s{0.0f, 0.0f};
  if (p.mean) {
    Vector part{};
    for_row(n, [&](std::int64_t column, std::int64_t count) {
      const Vector x = load_16<X>(p.x, row * n + column, count, p.aligned);
#pragma unroll
      for (int i = 0; i < kVector; ++i) part.v[i] = part.v[i] + x.v[i];
    });
    s.mean = add_row_sums(part) / float(n);
  }
  Vector part{};
  for_row(n, [&](std::int64_t column, std::int64_t count) {
    const Vector x = load_16<X>(p.x, row * n + column, count, p.aligned);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (i < count) part.v[i] = part.v[i] + numerics::square_of_deviation(x.v[i], s.mean);
  });
  s.rstd = numerics::inverse_deviation(add_row_sums(part), n, p.eps);
  if (threadIdx.x % 32 == 0) {
    if (p.mean) p.mean[row] = s.mean;
    p.rstd[row] = s.rstd;
  }
  return s;
}
__device__ __forceinline__ RowStatistics measured_row(const FusedParams& p, std::int64_t row) {
  return {p.mean ? p.mean[row] : 0.0f, p.rstd[row]};
}

// ---- results
__device__ __forceinline__ void normalize_vector(const FusedParams& p, Vector& x,
                                                 std::int64_t column, std::int64_t count,
                                                 RowStatistics s) {
  const Vector gamma = load_floats_16(p.gamma, column, count, p.aligned);
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    x.v[i] = numerics::normalize(x.v[i], s.mean, s.rstd) * gamma.v[i];
  if (!p.beta) return;
  const Vector beta = load_floats_16(p.beta, column, count, p.aligned);
#pragma unroll
  for (int i = 0; i < kVector; ++i) x.v[i] = x.v[i] + beta.v[i];
}

template <GeluForm kForm>
__device__ __forceinline__ void gelu_vector(Vector& x) {
#pragma unroll
  for (float& v : x.v) v = numerics::gelu(v, kForm);
}
template <GeluForm kForm>
__device__ __forceinline__ void gelu_gradient_vector(Vector& x, const Vector& dy) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) x.v[i] = dy.v[i] * numerics::gelu_derivative(x.v[i], kForm);
}

// Of the half of gate, or of up, that the elements lie in; `half`: columns of one.
template <DType X>
__device__ __forceinline__ Vector swiglu_gradient(const FusedParams& p, std::int64_t row,
                                                  std::int64_t column, std::int64_t half) {
  const bool of_gate = column < half;
  if (!of_gate) column -= half;
  const std::int64_t first = row * 2 * half + column;
  const Vector dy = load_vector<X>(p.dy, (row * half + column) / kVector);
  Vector gate = load_vector<X>(p.x, first / kVector);
  if (of_gate) {
    const Vector up = load_vector<X>(p.x, (first + half) / kVector);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      gate.v[i] = numerics::swiglu_gate_gradient(dy.v[i], gate.v[i], up.v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) gate.v[i] = dy.v[i] * numerics::silu(gate.v[i]);
  }
  return gate;
}
// Not aligned: 16 elements may lie in both halves.
template <DType X>
__device__ __forceinline__ float swiglu_gradient_element(const FusedParams& p, std::int64_t row,
                                                         std::int64_t column, std::int64_t half) {
  const bool of_gate = column < half;
  if (!of_gate) column -= half;
  const std::int64_t first = row * 2 * half + column;
  const float dy = load_element(p.dy, X, row * half + column), gate = load_element(p.x, X, first);
  if (!of_gate) return dy * numerics::silu(gate);
  return numerics::swiglu_gate_gradient(dy, gate, load_element(p.x, X, first + half));
}

// 16 elements of the result.
template <DType X, FusedOp kOp>
__device__ __forceinline__ Vector fused_values(const FusedParams& p, std::int64_t row,
                                               std::int64_t column, std::int64_t count,
                                               RowStatistics s) {
  const std::int64_t cols = p.out.cols, first = row * cols + column;
  if constexpr (kOp == FusedOp::kSwiGlu) {
    Vector gate = load_16<X>(p.x, first + row * cols, count, p.aligned);
    const Vector up = load_16<X>(p.x, first + (row + 1) * cols, count, p.aligned);
#pragma unroll
    for (int i = 0; i < kVector; ++i) gate.v[i] = numerics::swiglu(gate.v[i], up.v[i]);
    return gate;
  } else if constexpr (kOp == FusedOp::kSwiGluBackward) {
    if (p.aligned) return swiglu_gradient<X>(p, row, column, cols / 2);
    Vector gradient{};
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (i < count) gradient.v[i] = swiglu_gradient_element<X>(p, row, column + i, cols / 2);
    return gradient;
  } else {
    Vector x = load_16<X>(p.x, first, count, p.aligned);
    if constexpr (kOp == FusedOp::kNorm) normalize_vector(p, x, column, count, s);
    if constexpr (kOp == FusedOp::kGelu)
      p.form == GeluForm::kErf ? gelu_vector<GeluForm::kErf>(x) : gelu_vector<GeluForm::kTanh>(x);
    if constexpr (kOp == FusedOp::kGeluBackward) {
      const Vector dy = load_16<X>(p.dy, first, count, p.aligned);
      p.form == GeluForm::kErf ? gelu_gradient_vector<GeluForm::kErf>(x, dy)
                               : gelu_gradient_vector<GeluForm::kTanh>(x, dy);
    }
    return x;
  }
}

// Zeros where the elements are outside, for the maximum.
__device__ __forceinline__ void clear_outside(Vector& a, std::int64_t count) {
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    if (i >= count) a.v[i] = 0.0f;
}

// Four codes a word, of E5M2 too.
using ByteCodes = CodeWords<E4M3>;
__device__ __forceinline__ ByteCodes encode_bytes(Vector& a, const FusedParams& p, float scale) {
  apply_overflow(a, p.out.cast.overflow);
  scale_vector(a, scale);
  if (p.format == DType::kE4M3) return encode_vector<E4M3, Rounding::kNearest>(a, nullptr);
  const CodeWords<E5M2> c = encode_vector<E5M2, Rounding::kNearest>(a, nullptr);
  return {{c.w[0], c.w[1], c.w[2], c.w[3]}};
}

__device__ __forceinline__ std::int64_t fused_length(const FusedParams& p, std::int64_t row) {
  const std::int64_t cols = p.out.cols, left = p.out.cast.in.n - row * cols;
  return left < cols ? left : cols;
}

// ---- one row after the other
template <DType X, FusedOp kOp>
__global__ void __launch_bounds__(kThreads)
    fused_quantize_kernel(const __grid_constant__ FusedParams p) {
  const QuantizeParams& cast = p.out.cast;
  const bool needed = needs_amax(cast.choice), norm = kOp == FusedOp::kNorm;
  if (p.measure && !needed && !(norm && p.out.transposed)) return;
  const float scale = p.measure ? 1.0f : choose_scale_of_block(cast.choice);
  std::uint32_t max = 0;
  for (std::int64_t row = std::int64_t(blockIdx.x) * kWarps + threadIdx.x / 32; row < p.out.rows;
       row += std::int64_t(gridDim.x) * kWarps) {
    RowStatistics s{};
    if (norm) s = p.measure || !needed ? measure_row<X>(p, row) : measured_row(p, row);
    if (p.measure && !needed) continue;
    for_row(fused_length(p, row), [&](std::int64_t column, std::int64_t count) {
      Vector a = fused_values<X, kOp>(p, row, column, count, s);
      if (count < kVector) clear_outside(a, count);
      max = numerics::max_bits(max, largest_magnitude(a));
      if (p.measure) return;
      const ByteCodes c = encode_bytes(a, p, scale);
      store_16(static_cast<std::uint8_t*>(cast.y) + row * p.out.cols + column, c.w, count,
               p.aligned);
    });
  }
  if (p.measure) {
    max = block_max<kThreads>(max);
    if (threadIdx.x == 0 && max != 0) atomicMax(cast.amax, max);
    return;
  }
  publish_cast(scale, max, cast);
}

// ---- with the transposed copy; mean and rstd are there already
template <DType X, FusedOp kOp>
__global__ void __launch_bounds__(kThreads, 2)
    fused_transpose_kernel(const __grid_constant__ FusedParams p) {
  const QuantizeParams& cast = p.out.cast;
  const float scale = choose_scale_of_block(cast.choice);
  std::uint32_t max = 0;
  transpose_tiles<E4M3>(p.out, [&](std::int64_t row, std::int64_t column) {
    RowStatistics s{};
    if (kOp == FusedOp::kNorm) s = measured_row(p, row);
    const std::int64_t count = p.out.cols - column;
    Vector a = fused_values<X, kOp>(p, row, column, count, s);
    if (count < kVector) clear_outside(a, count);
    max = numerics::max_bits(max, largest_magnitude(a));
    return encode_bytes(a, p, scale);
  });
  publish_cast(scale, max, cast);
}

}  // namespace fp8amp::kernels::cuda
