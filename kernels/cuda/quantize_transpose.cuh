// quantize_transpose: codes and their transpose from one read, over tiles of 128 x 128 codes in
// shared memory.
#pragma once
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/transpose.cuh"

namespace fp8amp::kernels::cuda {

inline constexpr int kTile = 128;

// Where 16 codes of a row of the tile stand: neighbouring groups of 16 rows use other banks, so
// that a warp reads 16 rows of four columns without a conflict.
__device__ __forceinline__ int tile_group(int row, int group) { return group ^ (row / 16 & 7); }

struct TransposeParams {
  QuantizeParams cast;
  std::uint8_t* transposed;  // [cols, rows]
  std::int64_t rows, cols;
  bool aligned_rows, aligned_cols;  // 16-byte accesses along a row of `transposed`, of x and y
};

// The codes of 16 elements from `column` of `row` on; what lies outside is 0.
template <DType X, class F>
__device__ __forceinline__ CodeWords<F> load_codes(const TransposeParams& p, std::int64_t row,
                                                   std::int64_t column, float factor, float scale,
                                                   std::uint32_t& max) {
  Vector a;
  const std::int64_t first = row * p.cols + column;
  if (p.aligned_cols) {
    a = load_vector<X>(p.cast.in.x, first / kVector);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      a.v[i] = column + i < p.cols ? load_element(p.cast.in.x, X, first + i) : 0.0f;
  }
  if (p.cast.in.scale_inv) scale_vector(a, factor);
  const std::uint32_t largest = largest_magnitude(a);
  max = numerics::max_bits(max, largest);
  apply_overflow(a, largest, p.cast.overflow);
  scale_vector(a, scale);
  return encode_vector<F, Rounding::kNearest>(a, nullptr);
}

// Up to 16 codes, of which `count` are inside.
__device__ __forceinline__ void store_16(std::uint8_t* y, const std::uint32_t (&w)[4],
                                         std::int64_t count, bool aligned) {
  if (aligned && count >= kVector) {
    *reinterpret_cast<uint4*>(y) = make_uint4(w[0], w[1], w[2], w[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    if (i < count) y[i] = static_cast<std::uint8_t>(w[i / 4] >> 8 * (i % 4));
}

// Where the codes of a tile go: [cols, rows].
struct TransposedOutput {
  std::uint8_t* y;
  std::int64_t rows, cols;
  bool aligned_rows;
};
// Each thread: 16 rows of 4 columns of the tile that begins at row0, col0.
__device__ __forceinline__ void store_transposed(const uint4 (&tile)[kTile][kTile / 16],
                                                 const TransposedOutput& out, std::int64_t row0,
                                                 std::int64_t col0) {
  const int word = static_cast<int>(threadIdx.x) / 8, r = static_cast<int>(threadIdx.x) % 8 * 16;
  std::uint32_t codes[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    std::uint32_t in[4], columns[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4& q = tile[r + 4 * k + i][tile_group(r, word / 4)];
      in[i] = reinterpret_cast<const std::uint32_t*>(&q)[word % 4];
    }
    transpose_bytes(in, columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i][k] = columns[i];
  }
  const std::int64_t row = row0 + r;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t column = col0 + 4 * word + i;
    if (row < out.rows && column < out.cols)
      store_16(out.y + column * out.rows + row, codes[i], out.rows - row, out.aligned_rows);
  }
}

// load(row, column): the codes of 16 elements from `column` of `row` on.
template <class F, class Load>
__device__ __forceinline__ void transpose_tile(const TransposeParams& p, std::int64_t row0,
                                               std::int64_t col0, const Load& load) {
  FP8AMP_SHARED(uint4, tile, [kTile][kTile / 16]);
#pragma unroll 1
  for (int turn = 0; turn < 4; ++turn) {  // 8 threads a row, 32 rows a turn
    const int r = static_cast<int>(threadIdx.x) / 8 + 32 * turn,
              group = static_cast<int>(threadIdx.x) % 8;
    const std::int64_t row = row0 + r, column = col0 + 16 * group;
    if (row >= p.rows || column >= p.cols) continue;
    const CodeWords<F> c = load(row, column);
    tile[r][tile_group(r, group)] = make_uint4(c.w[0], c.w[1], c.w[2], c.w[3]);
    store_16(static_cast<std::uint8_t*>(p.cast.y) + row * p.cols + column, c.w, p.cols - column,
             p.aligned_cols);
  }
  __syncthreads();
  store_transposed(tile, {p.transposed, p.rows, p.cols, p.aligned_rows}, row0, col0);
  __syncthreads();  // before the next tile
}

// Calls transpose_tile for all tiles, spread over the grid.
template <class F, class Load>
__device__ __forceinline__ void transpose_tiles(const TransposeParams& p, const Load& load) {
  const std::int64_t tile_cols = (p.cols + kTile - 1) / kTile,
                     tiles = (p.rows + kTile - 1) / kTile * tile_cols;
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x)
    transpose_tile<F>(p, t / tile_cols * kTile, t % tile_cols * kTile, load);
}

// Four blocks a processor: 64 registers, with which nothing is spilled.
template <DType X, class F>
__global__ void __launch_bounds__(kThreads, 4)
    quantize_transpose_kernel(const __grid_constant__ TransposeParams p) {
  const float scale = choose_scale_of_block(p.cast.choice), factor = p.cast.in.factor();
  std::uint32_t max = 0;
  transpose_tiles<F>(p, [&](std::int64_t row, std::int64_t column) {
    return load_codes<X, F>(p, row, column, factor, scale, max);
  });
  publish_cast(scale, max, p.cast);
}

}  // namespace fp8amp::kernels::cuda
