// quantize_transpose: codes, their transpose and the sums of the columns from one read, over tiles
// of 128 x 128 codes in shared memory.
#pragma once
#include <fp8amp/numerics/column_sums.h>

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
  float* column_sums;  // [rows / 32 rounded up, cols]: sums of 32 rows each; may be null
};

// The codes of 16 elements from `column` of `row` on; what lies outside is 0. on_values(a): the
// elements themselves.
template <DType X, class F, class OnValues>
__device__ __forceinline__ CodeWords<F> load_codes(const TransposeParams& p, std::int64_t row,
                                                   std::int64_t column, float factor, float scale,
                                                   std::uint32_t& max, const OnValues& on_values) {
  const std::int64_t inside = p.aligned_cols ? kVector : p.cols - column;
  Vector a = load_16<X>(p.cast.in.x, row * p.cols + column, inside, p.aligned_cols);
  if (p.cast.in.scale_inv) scale_vector(a, factor);
  on_values(a);
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

// load(row, column): the codes of 16 elements from `column` of `row` on. after_turn(row, col0):
// called by all threads when the 32 rows from `row` on are done.
template <class F, class Load, class AfterTurn>
__device__ __forceinline__ void transpose_tile(const TransposeParams& p, std::int64_t row0,
                                               std::int64_t col0, const Load& load,
                                               const AfterTurn& after_turn) {
  FP8AMP_SHARED(uint4, tile, [kTile][kTile / 16]);
#pragma unroll 1
  for (int turn = 0; turn < 4; ++turn) {  // 8 threads a row, 32 rows a turn
    const int r = static_cast<int>(threadIdx.x) / 8 + 32 * turn,
              group = static_cast<int>(threadIdx.x) % 8;
    const std::int64_t row = row0 + r, column = col0 + 16 * group;
    if (row < p.rows && column < p.cols) {
      const CodeWords<F> c = load(row, column);
      tile[r][tile_group(r, group)] = make_uint4(c.w[0], c.w[1], c.w[2], c.w[3]);
      store_16(static_cast<std::uint8_t*>(p.cast.y) + row * p.cols + column, c.w, p.cols - column,
               p.aligned_cols);
    }
    after_turn(row0 + 32 * turn, col0);
  }
  __syncthreads();
  store_transposed(tile, {p.transposed, p.rows, p.cols, p.aligned_rows}, row0, col0);
  __syncthreads();  // before the next tile
}

// Calls transpose_tile for all tiles, spread over the grid.
template <class F, class Load, class AfterTurn>
__device__ __forceinline__ void transpose_tiles(const TransposeParams& p, const Load& load,
                                                const AfterTurn& after_turn) {
  const std::int64_t tile_cols = (p.cols + kTile - 1) / kTile,
                     tiles = (p.rows + kTile - 1) / kTile * tile_cols;
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x)
    transpose_tile<F>(p, t / tile_cols * kTile, t % tile_cols * kTile, load, after_turn);
}
template <class F, class Load>
__device__ __forceinline__ void transpose_tiles(const TransposeParams& p, const Load& load) {
  transpose_tiles<F>(p, load, [](std::int64_t, std::int64_t) {});
}

// ---- sums of the columns. The values of 32 rows of a tile: each row is spread over eight threads,
// and a column is to be added up in the order of its rows.
using StagedValues = float4[numerics::kRowsOfSum][kTile / 4];
// Where the four values `k` of the 16 of a group stand: neither eight threads that write a group
// each nor 32 that read a column each meet in a bank.
__device__ __forceinline__ int staged_values(int group, int k) {
  return 4 * group + (k ^ group / 2);
}

__device__ __forceinline__ void stage_values(StagedValues& staged, const Vector& a) {
  const int row = static_cast<int>(threadIdx.x) / 8, group = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
  for (int k = 0; k < 4; ++k)
    staged[row][staged_values(group, k)] =
        make_float4(a.v[4 * k], a.v[4 * k + 1], a.v[4 * k + 2], a.v[4 * k + 3]);
}

// A thread for each column, over the rows of the turn that begins at row0.
__device__ __forceinline__ void add_staged_values(const StagedValues& staged,
                                                  const TransposeParams& p, std::int64_t row0,
                                                  std::int64_t col0) {
  const int c = static_cast<int>(threadIdx.x);
  const std::int64_t column = col0 + c, rows = p.rows - row0;
  if (c >= kTile || column >= p.cols || rows <= 0) return;
  const int place = staged_values(c / 16, c / 4 % 4);
  const auto value = [&](int row) {
    return reinterpret_cast<const float*>(&staged[row][place])[c % 4];
  };
  float sum = 0.0f;
  if (rows >= numerics::kRowsOfSum) {
#pragma unroll
    for (int row = 0; row < numerics::kRowsOfSum; ++row) sum = sum + value(row);
  } else {
#pragma unroll 1
    for (int row = 0; row < rows; ++row) sum = sum + value(row);
  }
  p.column_sums[row0 / numerics::kRowsOfSum * p.cols + column] = sum;
}

// Four blocks a processor: 64 registers, with which nothing is spilled.
template <DType X, class F, bool kColumnSums>
__global__ void __launch_bounds__(kThreads, 4)
    quantize_transpose_kernel(const __grid_constant__ TransposeParams p) {
  const float scale = choose_scale_of_block(p.cast.choice), factor = p.cast.in.factor();
  std::uint32_t max = 0;
  if constexpr (kColumnSums) {
    FP8AMP_SHARED(float4, staged, [numerics::kRowsOfSum][kTile / 4]);
    transpose_tiles<F>(
        p,
        [&](std::int64_t row, std::int64_t column) {
          return load_codes<X, F>(p, row, column, factor, scale, max,
                                  [&](const Vector& a) { stage_values(staged, a); });
        },
        [&](std::int64_t row0, std::int64_t col0) {
          __syncthreads();
          add_staged_values(staged, p, row0, col0);
          __syncthreads();  // before the next turn
        });
  } else {
    transpose_tiles<F>(p, [&](std::int64_t row, std::int64_t column) {
      return load_codes<X, F>(p, row, column, factor, scale, max, [](const Vector&) {});
    });
  }
  publish_cast(scale, max, p.cast);
}

}  // namespace fp8amp::kernels::cuda
