// Launchers of the casts.
#include "kernels/quantize.h"

#include <optional>

#include "kernels/cuda/accumulate.cuh"
#include "kernels/cuda/cast_plan.cuh"
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/quantize_transpose.cuh"

namespace fp8amp::kernels::cuda {
namespace {

Input make_input(const void* x, const float* scale_inv, std::int64_t n, bool aligned) {
  return {x, scale_inv, n, aligned ? n / kVector : 0};
}

void launch_amax(const Input& in, DType type, std::uint32_t* amax, const ScaleChoice& choice,
                 cudaStream_t stream) {
  with_type(type, [&](auto x) {
    FP8AMP_LAUNCH(amax_kernel<x()>, grid_for(in.n), dim3(kThreads), 0, stream, in, amax, choice);
  });
}

void zero(void* p, std::size_t bytes, cudaStream_t stream) {
  FP8AMP_CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, stream));
}

void launch_quantize(const QuantizeParams& p, const QuantizeArgs& a, cudaStream_t stream) {
  const dim3 grid = grid_for(a.n), block(kThreads);
  with_type(a.x_type, [&](auto x) {
    with_format(a.format, [&](auto format) {
      using F = decltype(format);
      if (a.rounding == Rounding::kNearest)
        FP8AMP_LAUNCH((quantize_kernel<x(), F, Rounding::kNearest>), grid, block, 0, stream, p);
      else
        FP8AMP_LAUNCH((quantize_kernel<x(), F, Rounding::kStochastic>), grid, block, 0, stream, p);
    });
  });
}

void launch_transpose(const QuantizeParams& cast, const QuantizeArgs& a, float* column_sums,
                      cudaStream_t stream) {
  const TransposeParams p{cast,
                          a.transposed,
                          a.rows,
                          a.cols,
                          aligned_to_16(a.transposed) && a.rows % kVector == 0,
                          aligned_to_16(a.x, a.y) && a.cols % kVector == 0,
                          column_sums};
  const dim3 grid = grid_of(ceil_div(a.rows, kTile) * ceil_div(a.cols, kTile));
  with_type(a.x_type, [&](auto x) {
    with_float8(a.format, [&](auto format) {
      using F = decltype(format);
      if (column_sums)
        FP8AMP_LAUNCH((quantize_transpose_kernel<x(), F, true>), grid, dim3(kThreads), 0, stream,
                      p);
      else
        FP8AMP_LAUNCH((quantize_transpose_kernel<x(), F, false>), grid, dim3(kThreads), 0, stream,
                      p);
    });
  });
}

void launch_column_sums(const ColumnSumsArgs& a, float* partial, cudaStream_t stream) {
  const std::int64_t threads = numerics::sums_of_rows(a.rows) * ceil_div(a.cols, kVector);
  if (threads == 0) return;
  const ColumnSumsParams p{a.x,     a.x_scale_inv,
                           a.rows,  a.cols,
                           partial, aligned_to_16(a.x, partial) && a.cols % kVector == 0};
  with_type(a.x_type, [&](auto x) {
    FP8AMP_LAUNCH(column_sums_kernel<x()>, grid_of_threads(threads), dim3(kThreads), 0, stream, p);
  });
}

}  // namespace

void amax(const AmaxArgs& a) {
  const auto stream = static_cast<cudaStream_t>(a.stream);
  ScaleChoice always{};
  always.source = ScaleSource::kCurrent;
  zero(a.amax, sizeof *a.amax, stream);
  launch_amax(make_input(a.x, a.x_scale_inv, a.n, aligned_to_16(a.x)), a.x_type,
              reinterpret_cast<std::uint32_t*>(a.amax), always, stream);
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

void quantize(const QuantizeArgs& a) {
  const CastPlan plan(a);
  QuantizeParams p = plan.params();
  p.in = make_input(a.x, a.x_scale_inv, a.n, aligned_to_16(a.x, a.y));
  std::optional<ColumnSums> sums;
  if (a.column_sums) sums.emplace(a.rows, a.cols, a.column_sums, plan.stream);
  plan.begin();
  if (plan.measured) launch_amax(p.in, a.x_type, p.amax, plan.choice, plan.stream);
  if (a.transposed) {
    launch_transpose(p, a, sums ? sums->partial() : nullptr, plan.stream);
  } else {
    launch_quantize(p, a, plan.stream);
    if (sums)
      launch_column_sums({a.x, a.x_type, a.x_scale_inv, a.rows, a.cols, a.column_sums, a.stream},
                         sums->partial(), plan.stream);
  }
  if (sums) sums->end();
  plan.end();
}

void column_sums(const ColumnSumsArgs& a) {
  const ColumnSums sums(a.rows, a.cols, a.sums, static_cast<cudaStream_t>(a.stream));
  launch_column_sums(a, sums.partial(), static_cast<cudaStream_t>(a.stream));
  sums.end();
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

void dequantize(const DequantizeArgs& a) {
  const Input in = make_input(a.x, a.scale_inv, a.n, aligned_to_16(a.x, a.y));
  with_type(a.x_type, [&](auto x) {
    with_plain_type(a.y_type, [&](auto y) {
      FP8AMP_LAUNCH((dequantize_kernel<x(), y()>), grid_for(a.n), dim3(kThreads), 0,
                    static_cast<cudaStream_t>(a.stream), in, a.y);
    });
  });
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

void accumulate(const AccumulateArgs& a) {
  const auto stream = static_cast<cudaStream_t>(a.stream);
  const Scratch scratch(stream, sizeof(SumMeasure));
  auto* measure = static_cast<SumMeasure*>(scratch.data());
  const AccumulateParams p{make_input(a.x, a.x_scale_inv, a.n, aligned_to_16(a.x, a.sum)), a.sum,
                           a.sum_scale_inv, measure, format_max(a.format)};
  zero(measure, sizeof *measure, stream);
  with_type(a.x_type, [&](auto x) {
    with_float8(a.format, [&](auto format) {
      using F = decltype(format);
      FP8AMP_LAUNCH((measure_sum_kernel<x(), F>), grid_for(a.n), dim3(kThreads), 0, stream, p);
      FP8AMP_LAUNCH((store_sum_kernel<x(), F>), grid_for(a.n), dim3(kThreads), 0, stream, p);
    });
  });
  FP8AMP_LAUNCH(finish_sum_kernel, dim3(1), dim3(1), 0, stream, p, a.sum_scale_inv);
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fp8amp::kernels::cuda
