// Casts with a scale for each row or block.
//
//   quantize_rows_kernel   a scale for each row. A row is held in registers between its maximum and
//   its
//                          cast, up to 8192 elements; what is longer is read again
//   quantize_tiles_kernel  1x128 and 128x128, and every transposed output: tiles of 128 x 128, held
//   in
//                          registers; a transposed tile passes through shared memory as codes
//   column_amax_kernel     before the transposed output with a scale for each row: maxima of
//   columns
#pragma once
#include "kernels/blocks.h"
#include "kernels/cuda/quantize_transpose.cuh"

namespace fp8amp::kernels::cuda {

using numerics::ScaleLayout;

static_assert(kTile == numerics::kScaleBlock);

struct BlocksParams {
  const void* x;
  const float* x_scale_inv;  // may be null
  std::int64_t rows, cols;
  BlockOutput out, transposed;
  ScaleLayout layout, transposed_layout;
  float format_max;
  ScaleRounding scale_rounding;
  int margin;
  Overflow overflow;
  float* found_inf;                 // may be null
  std::uint32_t* column_amax;       // with a scale for each row: bits of max |x| of each column
  bool aligned_rows, aligned_cols;  // 16-byte accesses along a row of transposed.y; of x and out.y

  __device__ __forceinline__ float factor() const { return x_scale_inv ? *x_scale_inv : 1.0f; }
};

// 16 elements of `row` from `column` on; what lies outside is 0.
template <DType X>
__device__ __forceinline__ Vector load_values(const BlocksParams& p, std::int64_t row,
                                              std::int64_t column, float factor) {
  Vector a{};
  if (row >= p.rows || column >= p.cols) return a;
  const std::int64_t first = row * p.cols + column;
  if (p.aligned_cols) {
    a = load_vector<X>(p.x, first / kVector);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (column + i < p.cols) a.v[i] = load_element(p.x, X, first + i);
  }
  if (p.x_scale_inv) scale_vector(a, factor);
  return a;
}

__device__ __forceinline__ float scale_of(const BlocksParams& p, std::uint32_t amax) {
  if (p.found_inf && amax >= numerics::kInfBits) raise_flag(p.found_inf);
  return numerics::compute_scale(__uint_as_float(amax), p.format_max, p.scale_rounding, p.margin);
}

// Casts 16 elements under one scale and stores them to `out`.
template <class F>
__device__ __forceinline__ CodeWords<F> cast_values(const BlocksParams& p, Vector a, float scale) {
  apply_overflow(a, p.overflow);
  scale_vector(a, scale);
  return encode_vector<F, Rounding::kNearest>(a, nullptr);
}
template <class F>
__device__ __forceinline__ void store_out(const BlocksParams& p, const CodeWords<F>& c,
                                          std::int64_t row, std::int64_t column) {
  if (row < p.rows && column < p.cols)
    store_16(p.out.y + row * p.cols + column, c.w, p.cols - column, p.aligned_cols);
}

// ---- a scale for each row
// All threads of a row get its maximum. kRowThreads: 32, or the whole block.
template <int kRowThreads>
__device__ __forceinline__ std::uint32_t max_of_row(std::uint32_t max) {
  if constexpr (kRowThreads == 32) {
    return warp_reduce<Max>(max);
  } else {
    FP8AMP_SHARED(std::uint32_t, whole, [1]);
    max = block_max<kThreads>(max);
    if (threadIdx.x == 0) whole[0] = max;
    __syncthreads();
    return whole[0];
  }
}

inline constexpr int kHeld = 2;  // vectors of a thread
template <DType X, class F, int kRowThreads>
__global__ void __launch_bounds__(kThreads, 3)
    quantize_rows_kernel(const __grid_constant__ BlocksParams p) {
  constexpr int kRows = kThreads / kRowThreads, kTurn = kRowThreads * kVector;
  const float factor = p.factor();
  const int lane = static_cast<int>(threadIdx.x) % kRowThreads;
  const std::int64_t first = lane * kVector;
  for (std::int64_t row = std::int64_t(blockIdx.x) * kRows + threadIdx.x / kRowThreads;
       row < p.rows; row += std::int64_t(gridDim.x) * kRows) {
    Vector held[kHeld];
    std::uint32_t max = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i] = load_values<X>(p, row, first + i * kTurn, factor);
      max = numerics::max_bits(max, largest_magnitude(held[i]));
    }
    for (std::int64_t column = first + kHeld * kTurn; column < p.cols; column += kTurn)
      max = numerics::max_bits(max, largest_magnitude(load_values<X>(p, row, column, factor)));
    max = max_of_row<kRowThreads>(max);
    const float scale = scale_of(p, max);
    if (lane == 0) p.out.scale_inv[row] = numerics::inverse_scale(scale);
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      store_out<F>(p, cast_values<F>(p, held[i], scale), row, first + i * kTurn);
    for (std::int64_t column = first + kHeld * kTurn; column < p.cols; column += kTurn)
      store_out<F>(p, cast_values<F>(p, load_values<X>(p, row, column, factor), scale), row,
                   column);
    if constexpr (kRowThreads != 32) __syncthreads();  // before the maximum of the next row
  }
}

// ---- tiles: 8 threads a row, 32 rows a turn
inline constexpr int kTurns = 4;
struct TileValues {
  Vector turn[kTurns];
};
struct TilePlace {
  std::int64_t row0, col0;
  __device__ __forceinline__ int row(int turn) const {
    return static_cast<int>(threadIdx.x) / 8 + 32 * turn;
  }
  __device__ __forceinline__ int group() const { return static_cast<int>(threadIdx.x) % 8; }
  __device__ __forceinline__ std::int64_t column() const { return col0 + kVector * group(); }
};

template <DType X>
__device__ __forceinline__ void load_tile(const BlocksParams& p, const TilePlace& at, float factor,
                                          TileValues& tile) {
#pragma unroll
  for (int t = 0; t < kTurns; ++t)
    tile.turn[t] = load_values<X>(p, at.row0 + at.row(t), at.column(), factor);
}

// Raises columns[c], which is 0, to the maximum of column c. Contains a barrier before and after.
__device__ __forceinline__ void max_of_columns(const TileValues& tile, const TilePlace& at,
                                               std::uint32_t* columns) {
  if (threadIdx.x < kTile) columns[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    std::uint32_t max = 0;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) max = numerics::max_bits(max, magnitude(tile.turn[t].v[i]));
    max = Max::of(max, __shfl_xor_sync(kAllLanes, max, 8));  // the four rows of the warp
    max = Max::of(max, __shfl_xor_sync(kAllLanes, max, 16));
    if (threadIdx.x % 32 < 8) atomicMax(columns + kVector * at.group() + i, max);
  }
  __syncthreads();
}

template <DType X>
__global__ void __launch_bounds__(kThreads, 2)
    column_amax_kernel(const __grid_constant__ BlocksParams p) {
  FP8AMP_SHARED(std::uint32_t, columns, [kTile]);
  const std::int64_t tile_cols = numerics::scale_blocks(p.cols),
                     tiles = numerics::scale_blocks(p.rows) * tile_cols;
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const TilePlace at{t / tile_cols * kTile, t % tile_cols * kTile};
    TileValues tile;
    load_tile<X>(p, at, p.factor(), tile);
    max_of_columns(tile, at, columns);
    const std::int64_t column = at.col0 + threadIdx.x;
    if (threadIdx.x < kTile && column < p.cols)
      atomicMax(p.column_amax + column, columns[threadIdx.x]);
    __syncthreads();  // before the next tile
  }
}

// The scale of each of 16 columns.
__device__ __forceinline__ void scale_columns(Vector& a, const float* scales) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) a.v[i] = a.v[i] * scales[i];
}

// Scales of the transposed output, one for each column of the tile. Contains a barrier behind it.
template <ScaleGranularity G>
__device__ __forceinline__ void choose_columns(const BlocksParams& p, const TilePlace& at,
                                               const std::uint32_t* columns, float* scales) {
  const std::int64_t column = at.col0 + threadIdx.x;
  if (threadIdx.x < kTile) {
    std::uint32_t amax = 0;
    if (column < p.cols)
      amax = G == ScaleGranularity::kRow ? p.column_amax[column] : columns[threadIdx.x];
    const float scale = scale_of(p, amax);
    scales[threadIdx.x] = scale;
    if (column < p.cols && (G != ScaleGranularity::kRow || at.row0 == 0))
      p.transposed.scale_inv[p.transposed_layout.index(column, at.row0)] =
          numerics::inverse_scale(scale);
  }
  __syncthreads();
}

// The one scale of a 128x128 tile, for all threads.
__device__ __forceinline__ float choose_square(const BlocksParams& p, const TilePlace& at,
                                               const TileValues& tile) {
  FP8AMP_SHARED(float, scale, [1]);
  std::uint32_t max = 0;
#pragma unroll
  for (int t = 0; t < kTurns; ++t) max = numerics::max_bits(max, largest_magnitude(tile.turn[t]));
  max = block_max<kThreads>(max);
  if (threadIdx.x == 0) {
    scale[0] = scale_of(p, max);
    const float scale_inv = numerics::inverse_scale(scale[0]);
    if (p.out.scale_inv) p.out.scale_inv[p.layout.index(at.row0, at.col0)] = scale_inv;
    if (p.transposed.scale_inv)
      p.transposed.scale_inv[p.transposed_layout.index(at.col0, at.row0)] = scale_inv;
  }
  __syncthreads();
  return scale[0];
}

// Scales behind the last block of a row of blocks: 1.
__device__ __forceinline__ void pad_scales(const BlocksParams& p, const TilePlace& at) {
  const auto fill = [](float* scale_inv, const ScaleLayout& layout, std::int64_t row,
                       std::int64_t k, std::int64_t k_size) {
    if (!scale_inv || k + kTile < k_size) return;
    for (std::int64_t i = k / kTile + 1; i < layout.row_stride; ++i)
      scale_inv[row / kTile * layout.row_stride + i] = 1.0f;
  };
  if (threadIdx.x != 0) return;
  fill(p.out.scale_inv, p.layout, at.row0, at.col0, p.cols);
  fill(p.transposed.scale_inv, p.transposed_layout, at.col0, at.row0, p.rows);
}

// The maximum of the 128 elements of a row of the tile, for its 8 threads.
__device__ __forceinline__ std::uint32_t max_of_piece(const Vector& a) {
  std::uint32_t max = largest_magnitude(a);
#pragma unroll
  for (int offset = 1; offset < 8; offset *= 2)
    max = Max::of(max, __shfl_xor_sync(kAllLanes, max, offset));
  return max;
}

// With a scale for each row: `transposed` alone.
template <DType X, class F, ScaleGranularity G>
__global__ void __launch_bounds__(kThreads, 2)
    quantize_tiles_kernel(const __grid_constant__ BlocksParams p) {
  constexpr bool kSquare = G == ScaleGranularity::kBlock128x128,
                 kPieces = G == ScaleGranularity::kBlock1x128;
  FP8AMP_SHARED(uint4, codes, [kTile][kTile / 16]);
  FP8AMP_SHARED(std::uint32_t, columns, [kTile]);
  FP8AMP_SHARED(float, scales, [kTile]);
  const float factor = p.factor();
  const std::int64_t tile_cols = numerics::scale_blocks(p.cols);
  std::int64_t tile_rows = numerics::scale_blocks(p.rows);
  if (G == ScaleGranularity::kRow && tile_rows == 0) tile_rows = 1;  // columns without elements
  for (std::int64_t n = blockIdx.x; n < tile_rows * tile_cols; n += gridDim.x) {
    const TilePlace at{n / tile_cols * kTile, n % tile_cols * kTile};
    TileValues tile;
    load_tile<X>(p, at, factor, tile);
    float scale = 1.0f;
    if constexpr (kSquare) {
      scale = choose_square(p, at, tile);
      pad_scales(p, at);
    } else if (p.transposed.scale_inv) {
      if constexpr (kPieces) max_of_columns(tile, at, columns);
      choose_columns<G>(p, at, columns, scales);
    }
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      const std::int64_t row = at.row0 + at.row(t);
      if constexpr (kPieces) {
        if (p.out.scale_inv) {
          scale = scale_of(p, max_of_piece(tile.turn[t]));
          if (at.group() == 0 && row < p.rows)
            p.out.scale_inv[p.layout.index(row, at.col0)] = numerics::inverse_scale(scale);
        }
      }
      CodeWords<F> c{};
      if (kSquare || p.out.scale_inv) {
        c = cast_values<F>(p, tile.turn[t], scale);
        if (p.out.scale_inv) store_out<F>(p, c, row, at.column());
      }
      if (!p.transposed.scale_inv) continue;
      if constexpr (!kSquare) {
        apply_overflow(tile.turn[t], p.overflow);
        scale_columns(tile.turn[t], scales + kVector * at.group());
        c = encode_vector<F, Rounding::kNearest>(tile.turn[t], nullptr);
      }
      codes[at.row(t)][tile_group(at.row(t), at.group())] =
          make_uint4(c.w[0], c.w[1], c.w[2], c.w[3]);
    }
    if (p.transposed.scale_inv) {
      __syncthreads();
      store_transposed(codes, {p.transposed.y, p.rows, p.cols, p.aligned_rows}, at.row0, at.col0);
    }
    __syncthreads();  // before the next tile
  }
}

// ---- dequantize: 16 elements of a row a thread, which share a scale
struct DequantizeBlocksParams {
  const std::uint8_t* x;
  const float* scale_inv;
  ScaleLayout layout;
  std::int64_t rows, cols;
  void* y;
  bool aligned;
};
template <DType X, DType Y>
__global__ void __launch_bounds__(kThreads)
    dequantize_blocks_kernel(const __grid_constant__ DequantizeBlocksParams p) {
  const std::int64_t vectors = (p.cols + kVector - 1) / kVector;
  for (std::int64_t i = std::int64_t(blockIdx.x) * kThreads + threadIdx.x; i < p.rows * vectors;
       i += std::int64_t(gridDim.x) * kThreads) {
    const std::int64_t row = i / vectors, column = i % vectors * kVector,
                       first = row * p.cols + column;
    const float scale_inv = p.scale_inv[p.layout.index(row, column)];
    if (p.aligned) {
      Vector a = load_vector<X>(p.x, first / kVector);
      scale_vector(a, scale_inv);
      store_vector<Y>(p.y, first / kVector, a);
    } else {
      for (std::int64_t k = 0; k < kVector && column + k < p.cols; ++k)
        store_element(p.y, Y, first + k, load_element(p.x, X, first + k) * scale_inv);
    }
  }
}

}  // namespace fp8amp::kernels::cuda
