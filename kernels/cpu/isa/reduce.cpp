// Maxima, sums, products with a scalar.
#include <limits>
#include <type_traits>

#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/simd_convert.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {
namespace {

// The largest code without its sign: codes of a float type are ordered like their magnitudes, NaN
// above Inf above the rest.
template <class Code>
Code largest_code(const void* x, std::int64_t n) {
  typedef std::make_signed_t<Code> Signed;
  typedef Signed V __attribute__((vector_size(kBytes)));
  constexpr Signed kMask = std::numeric_limits<Signed>::max();
  constexpr std::int64_t kCount = kBytes / sizeof(Code);
  const char* p = static_cast<const char*>(x);
  V max[2] = {};
  std::int64_t i = 0;
  for (; i + 2 * kCount <= n; i += 2 * kCount, p += 2 * kBytes)
    for (int j = 0; j < 2; ++j) {
      const V a = load<V>(p + j * kBytes) & kMask;
      max[j] = max[j] > a ? max[j] : a;
    }
  Signed r = 0;
  for (int k = 0; k < kCount; ++k) {
    r = r > max[0][k] ? r : max[0][k];
    r = r > max[1][k] ? r : max[1][k];
  }
  for (; i < n; ++i, p += sizeof(Code)) {
    const Signed a = load<Signed>(p) & kMask;
    r = r > a ? r : a;
  }
  return Code(r);
}

template <DType T>
double sum_of_squares_of(const void* x, std::int64_t n) {
  constexpr int kDoubles = kBytes / 8,
                kSums = 8 / kDoubles;  // lanes of one vector, vectors of the 8 partial sums
  F64 part[kSums] = {};
  std::int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    const Group g = load_group<T>(element_pointer(x, T, i));
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const F64 value = j % 2 ? upper_doubles(g.v[j / 2]) : lower_doubles(g.v[j / 2]);
      part[j % kSums] += value * value;
    }
  }
  double sums[8];
  std::memcpy(sums, part, sizeof sums);
  for (; i < n; ++i) {
    const double value = load_element(x, T, i);
    sums[i % 8] += value * value;
  }
  double sum = 0;
  for (double s : sums) sum += s;
  return sum;
}

template <DType T>
[[gnu::noinline]] void scale_values_of(void* x, float factor, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    void* p = element_pointer(x, T, i);
    Group g = load_group<T>(p);
    for (F32& v : g.v) v = v * factor;
    store_group<T>(p, g);
  }
  for (; i < n; ++i) store_element(x, T, i, load_element(x, T, i) * factor);
}

// kRows rows of x, from row `first` on.
template <DType T, int kRows>
[[gnu::noinline]] void add_rows_of(const AddRowsLoop& loop, std::int64_t first) {
  const float x_scale_inv = loop.x_scale_inv;
  const std::int64_t begin = first * loop.x_row, x_row = loop.x_row, n = loop.cols;
  float* sums = loop.sums;
  std::int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    Group sum = load_group<DType::kFloat32>(sums + i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Group g = load_group<T>(element_pointer(loop.x, T, begin + r * x_row + i));
      for (int j = 0; j < 4; ++j) sum.v[j] = sum.v[j] + g.v[j] * x_scale_inv;
    }
    store_group<DType::kFloat32>(sums + i, sum);
  }
  for (; i < n; ++i)
    for (int r = 0; r < kRows; ++r)
      sums[i] = sums[i] + load_element(loop.x, T, begin + r * x_row + i) * x_scale_inv;
}
// Four rows at a time: the sums are loaded and stored once for them.
template <DType T>
void add_rows_of(const AddRowsLoop& loop) {
  std::int64_t row = 0;
  for (; row + 4 <= loop.rows; row += 4) add_rows_of<T, 4>(loop, row);
  for (; row < loop.rows; ++row) add_rows_of<T, 1>(loop, row);
}

}  // namespace

std::uint32_t amax(const void* x, DType x_type, std::int64_t n) {
  using numerics::float_bits;
  switch (x_type) {
    case DType::kFloat32: return largest_code<std::uint32_t>(x, n);
    case DType::kFloat16:
      return float_bits(numerics::half_to_float(largest_code<std::uint16_t>(x, n)));
    case DType::kBFloat16: return std::uint32_t(largest_code<std::uint16_t>(x, n)) << 16;
    case DType::kE4M3: return float_bits(numerics::decode<E4M3>(largest_code<std::uint8_t>(x, n)));
    case DType::kE5M2: return float_bits(numerics::decode<E5M2>(largest_code<std::uint8_t>(x, n)));
  }
  return 0;
}

double sum_of_squares(const void* x, DType x_type, std::int64_t n) {
  switch (x_type) {
    case DType::kFloat32: return sum_of_squares_of<DType::kFloat32>(x, n);
    case DType::kFloat16: return sum_of_squares_of<DType::kFloat16>(x, n);
    case DType::kBFloat16: return sum_of_squares_of<DType::kBFloat16>(x, n);
    case DType::kE4M3: return sum_of_squares_of<DType::kE4M3>(x, n);
    case DType::kE5M2: return sum_of_squares_of<DType::kE5M2>(x, n);
  }
  return 0;
}

void add_rows(const AddRowsLoop& loop) {
  switch (loop.x_type) {
    case DType::kFloat32: return add_rows_of<DType::kFloat32>(loop);
    case DType::kFloat16: return add_rows_of<DType::kFloat16>(loop);
    case DType::kBFloat16: return add_rows_of<DType::kBFloat16>(loop);
    case DType::kE4M3: return add_rows_of<DType::kE4M3>(loop);
    case DType::kE5M2: return add_rows_of<DType::kE5M2>(loop);
  }
}

void scale_values(void* x, DType x_type, float factor, std::int64_t n) {
  switch (x_type) {
    case DType::kFloat32: return scale_values_of<DType::kFloat32>(x, factor, n);
    case DType::kFloat16: return scale_values_of<DType::kFloat16>(x, factor, n);
    default: return scale_values_of<DType::kBFloat16>(x, factor, n);
  }
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
