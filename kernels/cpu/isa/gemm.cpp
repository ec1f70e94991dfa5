// FP8 GEMM: one FP32 chain per element, in the order of k.
//
// A product of two FP8 values is exact in FP32, so fused and separate multiply-add give the same
// bits, and with one chain per element so does every vector width, blocking and number of threads.
// Definition of element (m, n):
//   sum = 0; for k: sum = sum + A[m, k] * B[k, n]
//   d = sum * a_scale_inv * b_scale_inv; d = d + bias[n]; d = old + d (accumulate); one rounding to
//   d_type
// With scales along k, each piece of 128 k has a sum of its own, and
//   d = sum * a_scale_inv * b_scale_inv of the first; for the others: d = d + sum * a_scale_inv *
//   ...
//
// Loops (BLIS): columns of B, rows of A, blocks of k, panels. Between blocks of k the sums of a
// block of D rest in a buffer, tile by tile, so D is written once and never read except to
// accumulate.
#include <cstdlib>
#include <new>
#include <utility>

#include "kernels/cpu/isa/gemm_pack.h"
#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/simd_convert.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {
namespace {

// The tile of D held in registers: its sums, one row of B and one broadcast fill them. The 14 x 32
// of AVX-512 was verified by compiling this file for x86-64-v3 with FP8AMP_SIMD_BYTES=64 (the
// compiler splits the vectors).
#if defined(__x86_64__)
constexpr int kTileRows = kBytes == 64 ? 14 : 6, kVectors = 2;
#else
constexpr int kTileRows = 6, kVectors = 4;  // 32 registers of 16 bytes
#endif
constexpr int kTileColumns = kVectors * kLanes, kTile = kTileRows * kTileColumns;
// Of these, a panel of B stays in L1, a block of A in L2, a block of B and the sums in L3. On Zen 3
// 512 rows or columns, k of 192 or 384, or A blocks of twice the size cost 1 to 3 %; but where one
// block of 384 takes all of k, no sums go through memory, which gains 4 %. (AVX-512's wider panels
// of B would leave L1.)
constexpr std::int64_t kBlockK = 256, kWholeK = kBytes == 64 ? kBlockK : 384;
constexpr std::int64_t kPackRows = 96 / kTileRows * kTileRows;
constexpr std::int64_t kBlockRows = 1024, kBlockColumns = 1024;
// With one block of A, B is packed for one use: keep it in L2. (k contiguous only: elsewhere narrow
// blocks would jump through memory.)
constexpr std::int64_t kFewRowsColumns = 256;
constexpr int kCacheLine = 64 / sizeof(float);

inline F32 multiply_add(F32 a, F32 b, F32 c) {
#if defined(FP8AMP_SIMD_AVX512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(FP8AMP_SIMD_AVX2) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return c + a * b;
#endif
}

// What happens to complete sums on their way out: those of the last block of k, or of each block
// that has scales of its own.
struct Finish {
  const float *a_scale_inv, *b_scale_inv;  // of the tile's rows, of its columns
  const float* total;                      // of the blocks before, rows kTileColumns apart, or null
  const float* bias;                       // of the tile's columns, or null
};

// The block's share of a tile's chains: sums go on from `start` (null: from 0), rows kTileColumns
// apart, and end in `out`.
template <int Rows>
void multiply_tile(const float* __restrict a, const float* __restrict b, std::int64_t kc,
                   const float* start, float* out, std::int64_t out_row, const Finish* finish) {
  F32 sum[Rows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      sum[i][j] = start ? load<F32>(start + i * kTileColumns + j * kLanes) : F32{};
#pragma GCC unroll 4
  for (std::int64_t k = 0; k < kc; ++k, a += kTileRows, b += kTileColumns) {
    F32 bk[kVectors];
    for (int j = 0; j < kVectors; ++j) bk[j] = load<F32>(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const F32 x = all(a[i]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = multiply_add(x, bk[j], sum[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      F32 d = sum[i][j];
      if (finish) {
        d = d * all(finish->a_scale_inv[i]) * load<F32>(finish->b_scale_inv + j * kLanes);
        if (finish->total) d = load<F32>(finish->total + i * kTileColumns + j * kLanes) + d;
        if (finish->bias) d = d + load<F32>(finish->bias + j * kLanes);
      }
      store(out + i * out_row + j * kLanes, d);
    }
}

using TileFunction = void (*)(const float*, const float*, std::int64_t, const float*, float*,
                              std::int64_t, const Finish*);
template <std::size_t... I>
constexpr TileFunction tile_function(int rows, std::index_sequence<I...>) {
  constexpr TileFunction kFunctions[] = {multiply_tile<I + 1>...};
  return kFunctions[rows - 1];
}

// Memory of a thread, kept for the next call.
class Buffer {
 public:
  ~Buffer() { std::free(data_); }
  float* get(std::int64_t n) {
    if (n > size_) {
      std::free(data_);
      size_ = (n + 1023) / 1024 * 1024;
      data_ = static_cast<float*>(std::aligned_alloc(4096, size_ * sizeof(float)));
      if (!data_) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  std::int64_t size_ = 0;
};
struct Workspace {
  Buffer a, b, sums, bias, a_scales, b_scales;
};

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// The size of equal blocks, multiples of `unit`, of at most `most` elements (a multiple of unit
// too).
std::int64_t equal_blocks(std::int64_t total, std::int64_t most, std::int64_t unit) {
  const std::int64_t blocks = total <= most ? 1 : (total + most - 1) / most;
  const std::int64_t size = ((total + blocks - 1) / blocks + unit - 1) / unit * unit;
  return size > 0 ? size : unit;
}

// Two vectors of FP16 or BF16.
template <DType T>
inline void load_half_words(const void* p, F32& low, F32& high) {
  if constexpr (T == DType::kFloat16) {
    halves_to_floats(canonical_halves(load<U16>(p)), low, high);
  } else {
    const U32Pair w = widen_up(load<U16>(p));
    low = floats(w.a);
    high = floats(w.b);
  }
}
template <DType T>
inline U16 half_words(F32 low, F32 high) {
  return T == DType::kFloat16 ? ieee_halves(low, high)
                              : narrow(bfloat16_codes(low), bfloat16_codes(high));
}

// One row of a finished tile: old D is added, the sum rounded.
template <DType T>
inline void store_row(const float* tile, void* d, bool accumulate) {
  for (int j = 0; j < kTileColumns; j += 2 * kLanes) {
    F32 low = load<F32>(tile + j), high = load<F32>(tile + j + kLanes), old_low{}, old_high{};
    void* at = element_pointer(d, T, j);
    if constexpr (T == DType::kFloat32) {
      if (accumulate) {
        low = load<F32>(at) + low;
        high = load<F32>(element_pointer(at, T, kLanes)) + high;
      }
      store(at, low);
      store(element_pointer(at, T, kLanes), high);
    } else {
      if (accumulate) {
        load_half_words<T>(at, old_low, old_high);
        low = old_low + low;
        high = old_high + high;
      }
      store(at, half_words<T>(low, high));
    }
  }
}

// A finished tile that was not written to D at once: D is not plain FP32, or ends within the tile.
void store_tile(const GemmLoop& l, const float* tile, std::int64_t m, std::int64_t n, int rows,
                int columns) {
  for (int r = 0; r < rows; ++r, tile += kTileColumns) {
    const std::int64_t first = (m + r) * l.d_row + n;
    void* d = element_pointer(l.d, l.d_type, first);
    if (columns < kTileColumns) {
      for (int c = 0; c < columns; ++c) {
        const float old = l.accumulate ? load_element(d, l.d_type, c) : 0.0f;
        store_element(d, l.d_type, c, l.accumulate ? old + tile[c] : tile[c]);
      }
    } else if (l.d_type == DType::kFloat32) {
      store_row<DType::kFloat32>(tile, d, l.accumulate);
    } else if (l.d_type == DType::kFloat16) {
      store_row<DType::kFloat16>(tile, d, l.accumulate);
    } else {
      store_row<DType::kBFloat16>(tile, d, l.accumulate);
    }
  }
}

// Block [m0, m1) x [n0, n1) of D.
struct Block {
  std::int64_t m0, m1, n0, n1;
};

// One packed block of A times the packed block of B.
struct Step {
  const float *a, *b;
  const float *a_scales, *b_scales;  // of the rows and columns of the block of D
  std::int64_t kc;
  bool first, last;
  float* sums;          // of the block of D: panel of columns, panel of rows, tile
  std::int64_t panels;  // of rows
};

void multiply_panels(const GemmLoop& l, const Block& block, const Step& step, std::int64_t m0,
                     std::int64_t m1, const float* bias) {
  alignas(64) float tile[kTile];
  Finish finish{};
  const bool direct = l.d_type == DType::kFloat32 && !l.accumulate;
  const bool complete = step.last || l.scales_along_k;
  for (std::int64_t n = block.n0; n < block.n1; n += kTileColumns) {
    const std::int64_t column_panel = (n - block.n0) / kTileColumns;
    const float* b = step.b + column_panel * kTileColumns * step.kc;
    const int columns = static_cast<int>(smaller(kTileColumns, block.n1 - n));
    if (bias && step.last) finish.bias = bias + (n - block.n0);
    if (complete) finish.b_scale_inv = step.b_scales + (n - block.n0);
    for (std::int64_t m = m0; m < m1; m += kTileRows) {
      const float* a = step.a + (m - m0) * step.kc;
      const int rows = static_cast<int>(smaller(kTileRows, m1 - m));
      const std::int64_t number = column_panel * step.panels + (m - block.m0) / kTileRows;
      float* sums = step.sums ? step.sums + number * kTile : nullptr;
      const TileFunction multiply =
          rows == kTileRows ? multiply_tile<kTileRows>
                            : tile_function(rows, std::make_index_sequence<kTileRows>());
      const float* before = step.first ? nullptr : sums;
      const float* start = l.scales_along_k ? nullptr : before;
      finish.total = l.scales_along_k ? before : nullptr;
      if (complete) finish.a_scale_inv = step.a_scales + (m - block.m0);
      if (before)  // the next tile's, 3 % with those of D below
        for (int i = 0; i < kTile; i += kCacheLine) __builtin_prefetch(sums + kTile + i);
      if (!step.last) {
        multiply(a, b, step.kc, start, sums, kTileColumns, complete ? &finish : nullptr);
      } else if (direct && columns == kTileColumns) {
        float* d = static_cast<float*>(l.d) + m * l.d_row + n;
        for (int r = 0; r < rows; ++r) __builtin_prefetch(d + r * l.d_row, 1);
        multiply(a, b, step.kc, start, d, l.d_row, &finish);
      } else {
        multiply(a, b, step.kc, start, tile, kTileColumns, &finish);
        store_tile(l, tile, m, n, rows, columns);
      }
    }
  }
}

// The scales of rows [r0, r1) at k, followed by `size` - (r1 - r0) zeros.
const float* fill_scales(const GemmScales& scales, std::int64_t r0, std::int64_t r1, std::int64_t k,
                         std::int64_t size, Buffer& buffer) {
  float* out = buffer.get(size);
  for (std::int64_t r = r0; r < r1; ++r)
    out[r - r0] = scales.scale_inv ? scales.scale_inv[scales.layout.index(r, k)] : 1.0f;
  for (std::int64_t i = r1 - r0; i < size; ++i) out[i] = 0.0f;
  return out;
}

void multiply_block(const GemmLoop& l, const Block& block, Workspace& w, const float* bias) {
  const Operand a{l.a, l.a_row, l.a_k, l.a_e5m2}, b{l.b, l.b_row, l.b_k, l.b_e5m2};
  const std::int64_t block_k = l.scales_along_k
                                   ? numerics::kScaleBlock
                                   : equal_blocks(l.k, l.k <= kWholeK ? kWholeK : kBlockK, 16);
  const std::int64_t row_panels = (block.m1 - block.m0 + kTileRows - 1) / kTileRows;
  const std::int64_t column_panels = (block.n1 - block.n0 + kTileColumns - 1) / kTileColumns;
  const std::int64_t pack_rows = equal_blocks(block.m1 - block.m0, kPackRows, kTileRows);
  Step step{};
  float* packed_a = w.a.get(pack_rows * block_k + kPackSlack);
  float* packed_b = w.b.get(column_panels * kTileColumns * block_k + kPackSlack);
  step.sums = l.k > block_k ? w.sums.get(row_panels * column_panels * kTile) : nullptr;
  step.a = packed_a;
  step.b = packed_b;
  step.panels = row_panels;
  for (std::int64_t k = 0; k == 0 || k < l.k; k += block_k) {
    step.kc = smaller(block_k, l.k - k);
    step.first = k == 0;
    step.last = k + block_k >= l.k;
    if (step.last || l.scales_along_k) {
      step.a_scales =
          fill_scales(l.a_scales, block.m0, block.m1, k, row_panels * kTileRows, w.a_scales);
      step.b_scales =
          fill_scales(l.b_scales, block.n0, block.n1, k, column_panels * kTileColumns, w.b_scales);
    }
    pack<kTileColumns>(b, block.n0, block.n1, k, step.kc, packed_b);
    for (std::int64_t m = block.m0; m < block.m1; m += pack_rows) {
      const std::int64_t end = smaller(m + pack_rows, block.m1);
      pack<kTileRows>(a, m, end, k, step.kc, packed_a);
      multiply_panels(l, block, step, m, end, bias);
    }
  }
}

}  // namespace

void gemm(const GemmLoop& l) {
  static thread_local Workspace workspace;
  const std::int64_t rows =
      equal_blocks(l.m1 - l.m0, l.k > kWholeK ? kBlockRows : l.m1 - l.m0, kTileRows);
  const bool few_rows = l.m1 - l.m0 <= kPackRows && l.b_k == 1;
  const std::int64_t most_columns = few_rows ? kFewRowsColumns : kBlockColumns;
  const std::int64_t columns = equal_blocks(l.n1 - l.n0, most_columns, kTileColumns);
  for (std::int64_t n = l.n0; n < l.n1; n += columns) {
    const std::int64_t n1 = smaller(n + columns, l.n1);
    const float* bias = nullptr;
    if (l.bias) {
      float* values = workspace.bias.get(columns);
      for (std::int64_t i = 0; i < columns; ++i)
        values[i] = n + i < n1 ? load_element(l.bias, l.bias_type, n + i) : 0.0f;
      bias = values;
    }
    for (std::int64_t m = l.m0; m < l.m1; m += rows)
      multiply_block(l, {m, smaller(m + rows, l.m1), n, n1}, workspace, bias);
  }
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
