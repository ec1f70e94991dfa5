// Casts, maxima and accumulation on the CPU: threads and scales. The loops are in isa/.
#include "kernels/quantize.h"

#include <fp8amp/numerics/scale.h>
#include <fp8amp/parallel.h>

#include <algorithm>
#include <atomic>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/shared_maximum.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu {
namespace {

using namespace numerics;

constexpr std::int64_t kUnit =
    4096;  // ranges begin at multiples of this: a multiple of 16, as the random words want
constexpr std::int64_t kGrain =
    8;  // units that are worth waking a thread for: some 10 microseconds

// body(first, n) on ranges that cover [0, n) once.
template <class Body>
void for_ranges(std::int64_t n, const Body& body) {
  parallel_for(0, (n + kUnit - 1) / kUnit, kGrain, [&](std::int64_t from, std::int64_t to) {
    body(from * kUnit, std::min(to * kUnit, n) - from * kUnit);
  });
}

// max |x| times the scale: rounding is monotonic, so this is the maximum of the rounded products.
std::uint32_t scaled_amax(std::uint32_t amax_bits, const float* scale_inv) {
  return scale_inv ? abs_bits(bits_float(amax_bits) * *scale_inv) : amax_bits;
}

std::uint32_t amax_of(const void* x, DType x_type, std::int64_t n, const float* x_scale_inv) {
  SharedMaximum max;
  for_ranges(n, [&](std::int64_t first, std::int64_t count) {
    max.raise(loops().amax(element_pointer(x, x_type, first), x_type, count));
  });
  return scaled_amax(max.get(), x_scale_inv);
}

// ---- the pass over the data: codes, and bits of max |value|
CastLoop make_loop(const QuantizeArgs& a, float scale) {
  return {a.x,
          a.x_type,
          a.x_scale_inv != nullptr,
          a.x_scale_inv ? *a.x_scale_inv : 1.0f,
          a.y,
          a.format,
          scale,
          a.n,
          a.rounding,
          a.overflow,
          a.key,
          0};
}

std::uint32_t cast(const QuantizeArgs& a, float scale) {
  SharedMaximum max;
  for_ranges(a.n, [&](std::int64_t first, std::int64_t count) {
    CastLoop loop = make_loop(a, scale);
    loop.x = element_pointer(a.x, a.x_type, first);
    loop.y = element_pointer(a.y, a.format, first);
    loop.n = count;
    loop.first = std::uint64_t(first);
    max.raise(loops().cast(loop));
  });
  return max.get();
}

// Rows [first, first + rows) are added to sums[cols].
void add_rows(const ColumnSumsArgs& a, std::int64_t first, std::int64_t rows, float* sums) {
  loops().add_rows({element_pointer(a.x, a.x_type, first * a.cols), a.x_type,
                    a.x_scale_inv ? *a.x_scale_inv : 1.0f, rows, a.cols, a.cols, sums});
}

ColumnSumsArgs sums_of(const QuantizeArgs& a) {
  return {a.x, a.x_type, a.x_scale_inv, a.rows, a.cols, a.column_sums, a.stream};
}

// body(k, first, rows) for every 32 rows.
template <class Body>
void for_sums(std::int64_t rows, std::int64_t cols, const Body& body) {
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain * kUnit / (kRowsOfSum * cols + 1));
  parallel_for(0, cols ? sums_of_rows(rows) : 0, grain, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t k = from; k < to; ++k)
      body(k, k * kRowsOfSum, std::min(kRowsOfSum, rows - k * kRowsOfSum));
  });
}

// With the sums of the columns: 32 rows at a time, which the sums find in the cache.
std::uint32_t cast_and_sum(const QuantizeArgs& a, float scale, ColumnSums& sums) {
  SharedMaximum max;
  for_sums(a.rows, a.cols, [&](std::int64_t k, std::int64_t first, std::int64_t rows) {
    CastLoop loop = make_loop(a, scale);
    loop.x = element_pointer(a.x, a.x_type, first * a.cols);
    loop.y = element_pointer(a.y, a.format, first * a.cols);
    loop.n = rows * a.cols;
    loop.first = std::uint64_t(first * a.cols);
    max.raise(loops().cast(loop));
    add_rows(sums_of(a), first, rows, sums.start(k));
  });
  return max.get();
}

std::uint32_t cast_transpose(const QuantizeArgs& a, float scale, ColumnSums& sums) {
  constexpr std::int64_t kRows = 64;  // a cache line of the transposed output
  if (a.n == 0) return 0;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain * kUnit / kRows / a.cols);
  SharedMaximum max;
  parallel_for(0, (a.rows + kRows - 1) / kRows, grain, [&](std::int64_t from, std::int64_t to) {
    const std::int64_t first = from * kRows, rows = std::min(to * kRows, a.rows) - first;
    CastLoop loop = make_loop(a, scale);
    loop.x = element_pointer(a.x, a.x_type, first * a.cols);
    loop.y = element_pointer(a.y, a.format, first * a.cols);
    float* start = a.column_sums ? sums.start(first / kRowsOfSum, sums_of_rows(rows)) : nullptr;
    max.raise(loops().cast_transpose({loop, rows, a.cols, a.transposed + first, a.rows, start}));
  });
  return max.get();
}

// The first of two passes over x and sum: maximum and checksum of the sums before rounding.
struct SumMeasure {
  SharedMaximum max;
  std::atomic<std::uint32_t> checksum{0};
};
void measure(const AccumulateArgs& a, const AccumulateLoop& shared, SumMeasure& result) {
  for_ranges(a.n, [&](std::int64_t first, std::int64_t count) {
    std::uint32_t checksum = 0;
    AccumulateLoop loop = shared;
    loop.x = element_pointer(a.x, a.x_type, first);
    loop.sum = element_pointer(a.sum, a.format, first);
    loop.n = count;
    loop.checksum = &checksum;
    result.max.raise(loops().accumulate(loop));
    result.checksum += checksum;
  });
}

}  // namespace

void amax(const AmaxArgs& a) { *a.amax = bits_float(amax_of(a.x, a.x_type, a.n, a.x_scale_inv)); }

void quantize(const QuantizeArgs& a) {
  const float scale = choose_scale(a, [&] { return amax_of(a.x, a.x_type, a.n, a.x_scale_inv); });
  ColumnSums sums(a.column_sums ? a.rows : 0, a.column_sums ? a.cols : 0);
  finish_cast(a, scale,
              bits_float(a.transposed    ? cast_transpose(a, scale, sums)
                         : a.column_sums ? cast_and_sum(a, scale, sums)
                                         : cast(a, scale)));
  if (a.column_sums) sums.add(a.column_sums);
}

void column_sums(const ColumnSumsArgs& a) {
  ColumnSums sums(a.rows, a.cols);
  for_sums(a.rows, a.cols, [&](std::int64_t k, std::int64_t first, std::int64_t rows) {
    add_rows(a, first, rows, sums.start(k));
  });
  sums.add(a.sums);
}

void dequantize(const DequantizeArgs& a) {
  for_ranges(a.n, [&](std::int64_t first, std::int64_t count) {
    loops().dequantize({element_pointer(a.x, a.x_type, first), a.x_type, a.scale_inv != nullptr,
                        a.scale_inv ? *a.scale_inv : 1.0f, element_pointer(a.y, a.y_type, first),
                        a.y_type, count});
  });
}

void accumulate(const AccumulateArgs& a) {
  AccumulateLoop shared{};
  shared.x_type = a.x_type;
  shared.x_scale_inv = a.x_scale_inv ? *a.x_scale_inv : 1.0f;
  shared.format = a.format;
  shared.sum_scale_inv = *a.sum_scale_inv;
  shared.scale = 1.0f;
  shared.measure = true;
  SumMeasure sums;
  measure(a, shared, sums);
  shared.measure = false;
  shared.key = accumulate_key(sums.max.get(), sums.checksum);
  shared.scale =
      compute_scale(bits_float(sums.max.get()), format_max(a.format), ScaleRounding::kPowerOfTwo);
  for_ranges(a.n, [&](std::int64_t first, std::int64_t count) {
    AccumulateLoop loop = shared;
    loop.x = element_pointer(a.x, a.x_type, first);
    loop.sum = element_pointer(a.sum, a.format, first);
    loop.n = count;
    loop.first = std::uint64_t(first);
    loops().accumulate(loop);
  });
  *a.sum_scale_inv = inverse_scale(shared.scale);
}

}  // namespace fp8amp::kernels::cpu
