// Cast with a transposed copy of the codes. A tile lives in L1; both outputs are written in whole
// cache lines where the shape allows it.
#include "kernels/cpu/isa/cast.h"
#include "kernels/cpu/isa/padding.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {
namespace {

constexpr std::int64_t
    kTileRows = 64,
    kTileCols = 128;  // 0.68 ns an element on a Zen 3; 128x64 0.90, 64x64 1.05, 64x256 0.97

typedef std::uint8_t U8x16 __attribute__((vector_size(16)));

// out[j, i] = in[i, j], 16 x 16 bytes, in four rounds of interleaving.
void transpose16(const std::uint8_t* in, std::int64_t in_row, std::uint8_t* out,
                 std::int64_t out_row) {
  U8x16 v[16], w[16];
  for (int i = 0; i < 16; ++i) v[i] = load<U8x16>(in + i * in_row);
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      w[2 * i] = __builtin_shufflevector(v[i], v[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                         6, 22, 7, 23);
      w[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                             13, 29, 14, 30, 15, 31);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = w[i];
  }
  for (int i = 0; i < 16; ++i) store(out + i * out_row, v[i]);
}

// n bytes, mostly kUsual.
template <std::int64_t kUsual>
void copy(std::uint8_t* y, const std::uint8_t* x, std::int64_t n) {
  if (n == kUsual)
    std::memcpy(y, x, kUsual);
  else
    copy_bytes(y, x, std::size_t(n));
}

// One column of a tile: up to a cache line. Whole aligned lines go past the cache: with a stride of
// a power of two they would evict each other before they are complete.
void store_column(std::uint8_t* y, const std::uint8_t* x, std::int64_t n) {
#if defined(__AVX__)
  if (n == 64 && reinterpret_cast<std::uintptr_t>(y) % 64 == 0) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(y),
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(x)));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(y + 32),
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(x + 32)));
    return;
  }
#endif
  copy<64>(y, x, n);
}

// The hardware does not foresee the jump from row to row: 1.59 ns an element without, 0.90 with.
// More rows evict one another where the stride is a power of two.
constexpr std::int64_t kRowsAhead = 4;
inline void prefetch(const void* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 64) __builtin_prefetch(static_cast<const char*>(x) + i);
}

// A few rows of a tile are added to the sums while they are in L1.
constexpr std::int64_t kRowsAdded = 4;
void add_values(const CastTransposeLoop& l, std::int64_t row, std::int64_t rows,
                std::int64_t column, std::int64_t n) {
  static_assert(numerics::kRowsOfSum % kRowsAdded == 0);
  add_rows({element_pointer(l.cast.x, l.cast.x_type, row * l.cols + column), l.cast.x_type,
            l.cast.x_scale_inv, rows, n, l.cols,
            l.column_sums + row / numerics::kRowsOfSum * l.cols + column});
}

// Streaming stores are not ordered: the next reader may be another thread.
void finish_stores() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

}  // namespace

std::uint32_t cast_transpose(const CastTransposeLoop& l) {
  const CastRange cast_range = choose_cast(l.cast);
  alignas(64) std::uint8_t tile[kTileRows * kTileCols] = {}, lines[64 * kTileRows];
  U32 max{};
  for (std::int64_t r = 0; r < l.rows; r += kTileRows) {
    const std::int64_t height = l.rows - r < kTileRows ? l.rows - r : kTileRows;
    for (std::int64_t c = 0; c < l.cols; c += kTileCols) {
      const std::int64_t width = l.cols - c < kTileCols ? l.cols - c : kTileCols;
      for (std::int64_t i = 0; i < height; ++i) {
        const std::int64_t at = (r + i) * l.cols + c;
        if (r + i + kRowsAhead < l.rows)
          prefetch(element_pointer(l.cast.x, l.cast.x_type, at + kRowsAhead * l.cols),
                   width * size_in_bytes(l.cast.x_type));
        cast_range(l.cast, element_pointer(l.cast.x, l.cast.x_type, at), tile + i * kTileCols,
                   width, 0, max);
        copy<kTileCols>(static_cast<std::uint8_t*>(l.cast.y) + at, tile + i * kTileCols, width);
        if (l.column_sums && (i % kRowsAdded == kRowsAdded - 1 || i == height - 1))
          add_values(l, r + i / kRowsAdded * kRowsAdded, i % kRowsAdded + 1, c, width);
      }
      for (std::int64_t c64 = 0; c64 < width;
           c64 += 64) {  // 64 columns at a time, in full: what lies beyond the edge is not stored
        for (std::int64_t i = 0; i < height; i += 16)
          for (std::int64_t j = 0; j < 64; j += 16)
            transpose16(tile + i * kTileCols + c64 + j, kTileCols, lines + j * kTileRows + i,
                        kTileRows);
        const std::int64_t columns = width - c64 < 64 ? width - c64 : 64;
        for (std::int64_t j = 0; j < columns; ++j)
          store_column(l.yt + (c + c64 + j) * l.yt_stride + r, lines + j * kTileRows, height);
      }
    }
  }
  finish_stores();
  return largest(max);
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
