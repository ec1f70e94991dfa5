// Sums over rows, in the order of numerics/column_sums.h: a kernel that reads nothing but them, and
// what follows any kernel that has written the sums of 32 rows each.
#pragma once
#include <fp8amp/numerics/column_sums.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize.cuh"

namespace fp8amp::kernels::cuda {

struct ColumnSumsParams {
  const void* x;
  const float* x_scale_inv;  // may be null: 1
  std::int64_t rows, cols;
  float* sums;   // [rows / 32 rounded up, cols]
  bool aligned;  // 16-byte accesses along a row of x and sums
};

// A thread for 16 columns of 32 rows.
template <DType X>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const __grid_constant__ ColumnSumsParams p) {
  const std::int64_t vectors = (p.cols + kVector - 1) / kVector,
                     number = std::int64_t(blockIdx.x) * kThreads + threadIdx.x,
                     sum = number / vectors, column = number % vectors * kVector,
                     count = p.cols - column, first = sum * numerics::kRowsOfSum,
                     end = first + numerics::kRowsOfSum < p.rows ? first + numerics::kRowsOfSum
                                                                 : p.rows;
  if (first >= end) return;
  const float factor = p.x_scale_inv ? *p.x_scale_inv : 1.0f;
  Vector total{};
  for (std::int64_t row = first; row < end; ++row) {
    const Vector a = load_16<X>(p.x, row * p.cols + column, count, p.aligned);
#pragma unroll
    for (int i = 0; i < kVector; ++i) total.v[i] = total.v[i] + a.v[i] * factor;
  }
  store_16_values<DType::kFloat32>(p.sums, sum * p.cols + column, total, count, p.aligned);
}

// next[k] = sums[32 k] + ..., of n rows of `cols`
inline __global__ void __launch_bounds__(kThreads)
    add_rows_kernel(const float* sums, std::int64_t n, std::int64_t cols, float* next) {
  const std::int64_t number = std::int64_t(blockIdx.x) * kThreads + threadIdx.x,
                     first = number / cols * numerics::kRowsOfSum, column = number % cols,
                     end = first + numerics::kRowsOfSum < n ? first + numerics::kRowsOfSum : n;
  if (first >= end) return;
  float sum = sums[first * cols + column];
#pragma unroll 8
  for (std::int64_t row = first + 1; row < end; ++row) sum = sum + sums[row * cols + column];
  next[number] = sum;
}

// ---- launches
inline dim3 grid_of_threads(std::int64_t threads) {
  return dim3(static_cast<unsigned>(ceil_div(threads, kThreads)));
}

// Floats of scratch memory for the sums of 32 rows each and, behind them, the sums of these; none
// where there is but one: that is the total.
inline std::int64_t room_for_sums(std::int64_t rows, std::int64_t cols) {
  const std::int64_t sums = numerics::sums_of_rows(rows);
  return sums <= 1 ? 0 : (2 * sums + 64) / kVector * kVector * cols;
}

// 32 neighbouring rows of sums[n, cols] become one, until one is left: in `total`. The sums between
// stand behind the first. No rows: 0; one: `sums` is `total` already.
inline void add_rows(float* sums, std::int64_t n, std::int64_t cols, float* total,
                     cudaStream_t stream) {
  if (n == 0)
    FP8AMP_CUDA_CHECK(
        cudaMemsetAsync(total, 0, static_cast<std::size_t>(cols) * sizeof(float), stream));
  while (n > 1) {
    const std::int64_t next = numerics::sums_of_rows(n);
    float* const to = next == 1 ? total : sums + n * cols;
    FP8AMP_LAUNCH(add_rows_kernel, grid_of_threads(next * cols), dim3(kThreads), 0, stream, sums, n,
                  cols, to);
    sums = to;
    n = next;
  }
}

// The course of sums over rows: a kernel writes the sums of 32 rows each to partial().
class ColumnSums {
 public:
  ColumnSums(std::int64_t rows, std::int64_t cols, float* total, cudaStream_t stream)
      : scratch_(stream, static_cast<std::size_t>(room_for_sums(rows, cols)) * sizeof(float)),
        rows_(rows),
        cols_(cols),
        total_(total),
        stream_(stream) {}

  float* partial() const {
    return rows_ > numerics::kRowsOfSum ? static_cast<float*>(scratch_.data()) : total_;
  }
  void end() const {
    if (cols_ != 0) add_rows(partial(), numerics::sums_of_rows(rows_), cols_, total_, stream_);
  }

 private:
  Scratch scratch_;
  std::int64_t rows_, cols_;
  float* total_;
  cudaStream_t stream_;
};

}  // namespace fp8amp::kernels::cuda
