// CPU driver of the FP8 GEMM: cuts D into a grid of cells, one for each thread. Every element is
// one chain of FP32 additions (one for each block of scales), so its bits depend on neither grid
// nor threads.
#include "kernels/gemm.h"

#include <algorithm>
#include <limits>

#include "fp8amp/parallel.h"
#include "kernels/cpu/gemm_hopper.h"
#include "kernels/cpu/isa.h"

namespace fp8amp::kernels::cpu {
namespace {

constexpr std::int64_t kColumnUnit = 32;  // the widest register tile
constexpr std::int64_t kPacking =
    16;  // packing one element costs about as much as this many multiply-adds
constexpr std::int64_t kGrain = 1 << 20;  // multiply-adds worth a thread: some 20 us

struct Grid {
  std::int64_t rows, columns;            // cells
  std::int64_t cell_rows, cell_columns;  // size of a cell
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Time of one cell, in multiply-adds per k. Each cell packs its rows of A and its columns of B
// itself.
std::int64_t cost(std::int64_t rows, std::int64_t columns) {
  return rows * columns + kPacking * (rows + columns);
}

// The grid of at most `threads` cells whose largest cell takes least.
Grid choose_grid(std::int64_t m, std::int64_t n, std::int64_t threads) {
  Grid best{1, 1, m, n};
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t r = 1; r <= std::min(threads, m); ++r) {
    const std::int64_t cell_rows = ceil_div(m, r);
    const std::int64_t cell_columns = ceil_div(ceil_div(n, threads / r), kColumnUnit) * kColumnUnit;
    if (cost(cell_rows, cell_columns) >= least) continue;
    least = cost(cell_rows, cell_columns);
    best = {ceil_div(m, cell_rows), ceil_div(n, cell_columns), cell_rows, cell_columns};
  }
  return best;
}

// An empty sum has no blocks along k, and no scales of them.
GemmScales make_scales(const float* scale_inv, ScaleGranularity granularity, std::int64_t rows,
                       std::int64_t k) {
  if (k == 0 && numerics::scales_along_k(granularity)) return {};
  return {scale_inv, numerics::scale_layout(granularity, rows, k)};
}

GemmLoop whole(const GemmArgs& args) {
  GemmLoop loop{};
  loop.a = args.a;
  loop.b = args.b;
  loop.a_e5m2 = args.a_type == DType::kE5M2;
  loop.b_e5m2 = args.b_type == DType::kE5M2;
  loop.a_row = args.a_row;
  loop.a_k = args.a_k;
  loop.b_row = args.b_row;
  loop.b_k = args.b_k;
  loop.a_scales = make_scales(args.a_scale_inv, args.a_granularity, args.m, args.k);
  loop.b_scales = make_scales(args.b_scale_inv, args.b_granularity, args.n, args.k);
  loop.scales_along_k =
      numerics::scales_along_k(args.a_granularity) || numerics::scales_along_k(args.b_granularity);
  loop.d = args.d;
  loop.d_type = args.d_type;
  loop.d_row = args.n;
  loop.bias = args.bias;
  loop.bias_type = args.bias_type;
  loop.m1 = args.m;
  loop.n1 = args.n;
  loop.k = args.k;
  loop.accumulate = args.accumulate;
  return loop;
}

}  // namespace

void gemm(const GemmArgs& args) {
  if (args.m <= 0 || args.n <= 0) return;
  if (args.accumulation == Accumulation::kHopper) return gemm_hopper(args);
  const GemmLoop loop = whole(args);
  const std::int64_t work =
      ceil_div(cost(args.m, args.n) * std::max<std::int64_t>(args.k, 1), kGrain);
  const Grid grid = choose_grid(args.m, args.n, std::min<std::int64_t>(num_threads(), work));
  parallel_for(0, grid.rows * grid.columns, 1, [&](std::int64_t cell, std::int64_t end) {
    while (cell < end) {  // neighbours in a row of the grid are done as one: A is packed once
      const std::int64_t row = cell / grid.columns, column = cell % grid.columns;
      const std::int64_t columns = std::min(grid.columns - column, end - cell);
      GemmLoop part = loop;
      part.m0 = row * grid.cell_rows;
      part.m1 = std::min(args.m, part.m0 + grid.cell_rows);
      part.n0 = column * grid.cell_columns;
      part.n1 = std::min(args.n, part.n0 + columns * grid.cell_columns);
      loops().gemm(part);
      cell += columns;
    }
  });
}

}  // namespace fp8amp::kernels::cpu
