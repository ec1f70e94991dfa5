// Gradients of the norms: dx a warp a row, dgamma and dbeta in the order that
// numerics/column_sums.h fixes, a thread for 16 columns of 32 rows.
#pragma once
#include "kernels/cuda/fused.cuh"

namespace fp8amp::kernels::cuda {

struct NormBackwardParams {
  NormBackwardArgs a;
  bool aligned;                   // 16-byte accesses along a row, of every tensor
  float *gamma_sums, *beta_sums;  // [rows / 32, cols], rounded up; beta_sums may be null
};

// h and dy of 16 elements; elements outside have dy = 0.
struct NormGradientVector {
  Vector h, dy;
};
template <DType X>
__device__ __forceinline__ NormGradientVector load_gradient(const NormBackwardParams& p,
                                                            std::int64_t row, std::int64_t column,
                                                            std::int64_t count) {
  const std::int64_t first = row * p.a.cols + column;
  const float mean = p.a.mean ? p.a.mean[row] : 0.0f, rstd = p.a.rstd[row];
  NormGradientVector r{load_16<X>(p.a.x, first, count, p.aligned),
                       load_16<X>(p.a.dy, first, count, p.aligned)};
#pragma unroll
  for (float& v : r.h.v) v = numerics::normalize(v, mean, rstd);
  return r;
}

template <DType X>
__global__ void __launch_bounds__(kThreads)
    norm_backward_kernel(const __grid_constant__ NormBackwardParams p) {
  const std::int64_t n = p.a.cols;
  for (std::int64_t row = std::int64_t(blockIdx.x) * kWarps + threadIdx.x / 32; row < p.a.rows;
       row += std::int64_t(gridDim.x) * kWarps) {
    Vector of_g{}, of_gh{};
    for_row(n, [&](std::int64_t column, std::int64_t count) {
      const NormGradientVector r = load_gradient<X>(p, row, column, count);
      const Vector gamma = load_floats_16(p.a.gamma, column, count, p.aligned);
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        if (i < count) {
          const float g = r.dy.v[i] * gamma.v[i];
          of_g.v[i] = of_g.v[i] + g;
          of_gh.v[i] = of_gh.v[i] + g * r.h.v[i];
        }
    });
    const float a = p.a.mean ? add_row_sums(of_g) / float(n) : 0.0f,
                b = add_row_sums(of_gh) / float(n), rstd = p.a.rstd[row];
    for_row(n, [&](std::int64_t column, std::int64_t count) {
      const NormGradientVector r = load_gradient<X>(p, row, column, count);
      Vector dx = load_floats_16(p.a.gamma, column, count, p.aligned);
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        dx.v[i] = numerics::normalize_gradient(r.dy.v[i] * dx.v[i], r.h.v[i], a, b, rstd);
      store_16_values<X>(p.a.dx, row * n + column, dx, count, p.aligned);
    });
  }
}

// Sums of 32 rows each.
template <DType X>
__global__ void __launch_bounds__(kThreads)
    norm_columns_kernel(const __grid_constant__ NormBackwardParams p) {
  const std::int64_t vectors = (p.a.cols + kVector - 1) / kVector,
                     number = std::int64_t(blockIdx.x) * kThreads + threadIdx.x,
                     sum = number / vectors, column = number % vectors * kVector,
                     count = p.a.cols - column, first = sum * numerics::kRowsOfSum,
                     end = first + numerics::kRowsOfSum < p.a.rows ? first + numerics::kRowsOfSum
                                                                   : p.a.rows;
  if (first >= end) return;
  Vector dgamma{}, dbeta{};
  for (std::int64_t row = first; row < end; ++row) {
    const NormGradientVector r = load_gradient<X>(p, row, column, count);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      dgamma.v[i] = dgamma.v[i] + r.dy.v[i] * r.h.v[i];
      dbeta.v[i] = dbeta.v[i] + r.dy.v[i];
    }
  }
  const std::int64_t at = sum * p.a.cols + column;
  store_16_values<DType::kFloat32>(p.gamma_sums, at, dgamma, count, p.aligned);
  if (p.beta_sums) store_16_values<DType::kFloat32>(p.beta_sums, at, dbeta, count, p.aligned);
}

}  // namespace fp8amp::kernels::cuda
