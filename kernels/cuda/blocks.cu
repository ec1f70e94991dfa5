// Launchers of the casts with a scale for each row or block.
#include "kernels/cuda/blocks.cuh"

#include "kernels/cuda/launch.cuh"

namespace fp8amp::kernels::cuda {
namespace {

constexpr std::int64_t kWarpRow = 32 * kVector * kHeld;  // a row that one warp holds

// body(X, F): types of x and of the codes
template <class Body>
void with_types(const QuantizeBlocksArgs& a, const Body& body) {
  with_float8(a.format,
              [&](auto format) { with_plain_type(a.x_type, [&](auto x) { body(x, format); }); });
}

BlocksParams make_params(const QuantizeBlocksArgs& a) {
  BlocksParams p{};
  p.x = a.x;
  p.x_scale_inv = a.x_scale_inv;
  p.rows = a.rows;
  p.cols = a.cols;
  p.out = a.out;
  p.transposed = a.transposed;
  p.layout = numerics::scale_layout(a.granularity, a.rows, a.cols);
  p.transposed_layout = numerics::scale_layout(a.granularity, a.cols, a.rows);
  p.format_max = format_max(a.format);
  p.scale_rounding = a.scale_rounding;
  p.margin = a.margin;
  p.overflow = a.overflow;
  p.found_inf = a.found_inf;
  p.aligned_rows = a.rows % kVector == 0 && aligned_to_16(a.transposed.y);
  p.aligned_cols = a.cols % kVector == 0 && aligned_to_16(a.x, a.out.y);
  return p;
}

template <ScaleGranularity G>
void launch_tiles(const QuantizeBlocksArgs& a, const BlocksParams& p, cudaStream_t stream) {
  const dim3 grid = grid_of(std::max<std::int64_t>(1, numerics::scale_blocks(a.rows)) *
                            numerics::scale_blocks(a.cols));
  with_types(a, [&](auto x, auto format) {
    FP8AMP_LAUNCH((quantize_tiles_kernel<x(), decltype(format), G>), grid, dim3(kThreads), 0,
                  stream, p);
  });
}

void launch_rows(const QuantizeBlocksArgs& a, const BlocksParams& p, cudaStream_t stream) {
  with_types(a, [&](auto x, auto format) {
    using F = decltype(format);
    if (a.cols <= kWarpRow)
      FP8AMP_LAUNCH((quantize_rows_kernel<x(), F, 32>), grid_of(ceil_div(a.rows, 8)),
                    dim3(kThreads), 0, stream, p);
    else
      FP8AMP_LAUNCH((quantize_rows_kernel<x(), F, kThreads>), grid_of(a.rows), dim3(kThreads), 0,
                    stream, p);
  });
}

// The transposed output with a scale for each of its rows: the maxima of the columns of x first.
void launch_columns(const QuantizeBlocksArgs& a, BlocksParams p, cudaStream_t stream) {
  const std::size_t bytes = static_cast<std::size_t>(a.cols) * sizeof(std::uint32_t);
  const Scratch scratch(stream, bytes);
  p.column_amax = static_cast<std::uint32_t*>(scratch.data());
  p.out = {};
  p.aligned_cols = a.cols % kVector == 0 && aligned_to_16(a.x);
  FP8AMP_CUDA_CHECK(cudaMemsetAsync(p.column_amax, 0, bytes, stream));
  with_types(a, [&](auto x, auto) {
    FP8AMP_LAUNCH((column_amax_kernel<x()>),
                  grid_of(numerics::scale_blocks(a.rows) * numerics::scale_blocks(a.cols)),
                  dim3(kThreads), 0, stream, p);
  });
  launch_tiles<ScaleGranularity::kRow>(a, p, stream);
}

}  // namespace

void quantize_blocks(const QuantizeBlocksArgs& a) {
  const auto stream = static_cast<cudaStream_t>(a.stream);
  const BlocksParams p = make_params(a);
  switch (a.granularity) {
    case ScaleGranularity::kBlock1x128:
      launch_tiles<ScaleGranularity::kBlock1x128>(a, p, stream);
      break;
    case ScaleGranularity::kBlock128x128:
      launch_tiles<ScaleGranularity::kBlock128x128>(a, p, stream);
      break;
    default:
      if (a.out.scale_inv) launch_rows(a, p, stream);
      if (a.transposed.scale_inv && a.cols > 0) launch_columns(a, p, stream);
  }
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

void dequantize_blocks(const DequantizeBlocksArgs& a) {
  const DequantizeBlocksParams p{
      a.x,    a.scale_inv, numerics::scale_layout(a.granularity, a.rows, a.cols), a.rows,
      a.cols, a.y,         a.cols % kVector == 0 && aligned_to_16(a.x, a.y)};
  const dim3 grid = grid_for(a.rows * ceil_div(a.cols, kVector) * kVector);
  const auto stream = static_cast<cudaStream_t>(a.stream);
  with_float8_type(a.x_type, [&](auto x) {
    with_plain_type(a.y_type, [&](auto y) {
      FP8AMP_LAUNCH((dequantize_blocks_kernel<x(), y()>), grid, dim3(kThreads), 0, stream, p);
    });
  });
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fp8amp::kernels::cuda
