// Casts with a scale for each row or block on the CPU, by the loops of the plain casts. The
// transposed output is made from transposed tiles, so that its rows pass through the same loops.
#include "kernels/blocks.h"

#include <fp8amp/numerics/scale.h>
#include <fp8amp/parallel.h>

#include <algorithm>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/shared_maximum.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu {
namespace {

using namespace numerics;

constexpr std::int64_t kTile = kScaleBlock;
constexpr std::int64_t kGrain = 4096;  // elements worth waking a thread for: some 10 microseconds

// An output and what it is made of, so that both outputs look alike: `x` with rows along memory.
struct Side {
  const QuantizeBlocksArgs& a;
  BlockOutput out;
  std::int64_t rows, k;
  bool transposed;
  ScaleLayout layout;
};

Side make_side(const QuantizeBlocksArgs& a, bool transposed) {
  const std::int64_t rows = transposed ? a.cols : a.rows, k = transposed ? a.rows : a.cols;
  return {a,          transposed ? a.transposed : a.out,   rows, k,
          transposed, scale_layout(a.granularity, rows, k)};
}

// At most kTile x kTile elements of a side, with its rows along memory: in x itself, or transposed
// in a buffer.
struct Tile {
  const void* x;
  DType type;
  std::int64_t stride, rows, width;

  const void* row(std::int64_t i) const { return element_pointer(x, type, i * stride); }
};

template <class Element>
void transpose(const void* from, std::int64_t from_row, const Tile& tile, void* to) {
  const auto* x = static_cast<const Element*>(from);
  auto* y = static_cast<Element*>(to);
  for (std::int64_t k = 0; k < tile.width; ++k)
    for (std::int64_t i = 0; i < tile.rows; ++i) y[i * kTile + k] = x[k * from_row + i];
}

Tile get_tile(const Side& s, std::int64_t row, std::int64_t k, void* buffer) {
  const DType type = s.a.x_type;
  Tile tile{nullptr, type, s.k, std::min(kTile, s.rows - row), std::min(kTile, s.k - k)};
  if (!s.transposed) {
    tile.x = element_pointer(s.a.x, type, row * s.k + k);
    return tile;
  }
  tile.x = buffer;
  tile.stride = kTile;
  const void* first = element_pointer(s.a.x, type, k * s.rows + row);
  if (type == DType::kFloat32)
    transpose<std::uint32_t>(first, s.rows, tile, buffer);
  else
    transpose<std::uint16_t>(first, s.rows, tile, buffer);
  return tile;
}

// Bits of max |x * x_scale_inv| of one row of a tile. A positive factor and its rounding are
// monotonic: the maximum may take it last.
std::uint32_t row_amax(const Side& s, const Tile& tile, std::int64_t i) {
  const std::uint32_t bits = loops().amax(tile.row(i), s.a.x_type, tile.width);
  return s.a.x_scale_inv ? abs_bits(bits_float(bits) * *s.a.x_scale_inv) : bits;
}

float scale_of(const QuantizeBlocksArgs& a, std::uint32_t amax_bits) {
  return compute_scale(bits_float(amax_bits), format_max(a.format), a.scale_rounding, a.margin);
}

void cast_row(const Side& s, const Tile& tile, std::int64_t i, std::int64_t row, std::int64_t k,
              float scale) {
  CastLoop loop{};
  loop.x = tile.row(i);
  loop.x_type = s.a.x_type;
  loop.has_x_scale_inv = s.a.x_scale_inv != nullptr;
  loop.x_scale_inv = s.a.x_scale_inv ? *s.a.x_scale_inv : 1.0f;
  loop.y = s.out.y + (row + i) * s.k + k;
  loop.format = s.a.format;
  loop.scale = scale;
  loop.n = tile.width;
  loop.overflow = s.a.overflow;
  loops().cast(loop);
}

// A strip of kTile rows: the maxima of the blocks that begin in it, then its codes.
std::uint32_t quantize_strip(const Side& s, std::int64_t row, void* buffer) {
  std::uint32_t amax[kTile] = {}, largest = 0;
  const std::int64_t rows = std::min(kTile, s.rows - row);
  const bool whole_rows = s.a.granularity == ScaleGranularity::kRow;
  const bool square = s.a.granularity == ScaleGranularity::kBlock128x128;
  if (whole_rows)
    for (std::int64_t k = 0; k < s.k; k += kTile) {
      const Tile tile = get_tile(s, row, k, buffer);
      for (std::int64_t i = 0; i < rows; ++i) amax[i] = max_bits(amax[i], row_amax(s, tile, i));
    }
  for (std::int64_t k = 0; k < s.k; k += kTile) {
    const Tile tile = get_tile(s, row, k, buffer);
    if (!whole_rows)
      for (std::int64_t i = 0; i < rows; ++i) amax[i] = row_amax(s, tile, i);
    if (square) std::fill_n(amax, rows, *std::max_element(amax, amax + rows));
    for (std::int64_t i = 0; i < rows; ++i) {
      const float scale = scale_of(s.a, amax[i]);
      s.out.scale_inv[s.layout.index(row + i, k)] = inverse_scale(scale);
      largest = max_bits(largest, amax[i]);
      cast_row(s, tile, i, row, k, scale);
    }
  }
  return largest;
}

void quantize_side(const Side& s, SharedMaximum& largest) {
  std::fill_n(s.out.scale_inv, s.layout.size, 1.0f);  // padding, and rows without elements
  const std::int64_t grain =
      std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, kTile * s.k));
  parallel_for(0, scale_blocks(s.rows), grain, [&](std::int64_t from, std::int64_t to) {
    alignas(64) std::uint32_t buffer[kTile * kTile];  // 64 KiB: elements of 4 bytes at most
    for (std::int64_t i = from; i < to; ++i) largest.raise(quantize_strip(s, i * kTile, buffer));
  });
}

}  // namespace

void quantize_blocks(const QuantizeBlocksArgs& a) {
  SharedMaximum largest;
  if (a.out.scale_inv) quantize_side(make_side(a, false), largest);
  if (a.transposed.scale_inv) quantize_side(make_side(a, true), largest);
  if (a.found_inf && largest.get() >= kInfBits) *a.found_inf = 1.0f;
}

void dequantize_blocks(const DequantizeBlocksArgs& a) {
  const ScaleLayout layout = scale_layout(a.granularity, a.rows, a.cols);
  const std::int64_t width = scales_along_k(a.granularity) ? kScaleBlock : a.cols;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, a.cols));
  parallel_for(0, a.rows, grain, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t row = from; row < to; ++row)
      for (std::int64_t k = 0; k < a.cols; k += width)
        loops().dequantize({a.x + row * a.cols + k, a.x_type, true,
                            a.scale_inv[layout.index(row, k)],
                            element_pointer(a.y, a.y_type, row * a.cols + k), a.y_type,
                            std::min(width, a.cols - k)});
  });
}

}  // namespace fp8amp::kernels::cpu
