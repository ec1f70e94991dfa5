// Casts, maxima and sums: arguments and the two backends. Raw pointers; scales and
// maxima live on the device of the data.
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/convert.h>
#include <fp8amp/numerics/formats.h>
#include <fp8amp/numerics/random.h>

#include <cstdint>

namespace fp8amp::kernels {

// max |x| -> *amax (float). value = x * *x_scale_inv if given.
struct AmaxArgs {
  const void* x;
  DType x_type;
  std::int64_t n;
  const float* x_scale_inv;  // may be null
  float* amax;
  void* stream;
};

enum class ScaleSource : std::uint8_t {
  kCurrent,  // from amax(x): a first pass over x
  kGiven,    // *scale
  kKeep,     // 1 / *scale_inv, which is not written
  kDelayed,  // from history
};

// y = format(x * scale), *scale_inv = 1 / scale, *amax = max |x|.
struct QuantizeArgs {
  const void* x;
  DType x_type;
  const float* x_scale_inv;  // may be null
  void* y;
  DType format;
  float* scale_inv;
  std::int64_t n;
  ScaleSource source;
  const float* scale;  // kGiven
  float* history;      // kDelayed: see fp8amp/recipe.h
  std::int64_t history_length;
  bool update_history;
  ScaleRounding scale_rounding;
  int margin;
  Rounding rounding;
  Overflow overflow;
  std::uint32_t key;         // of the random bits
  float* amax;               // may be null
  float* found_inf;          // may be null
  std::uint8_t* transposed;  // may be null; else the format is float8
  float* column_sums;        // [cols], of the values before any rounding; may be null
  std::int64_t rows, cols;   // of x, if either is wanted
  void* stream;
};

// sums[cols] of x[rows, cols] * *x_scale_inv if given: numerics/column_sums.h.
struct ColumnSumsArgs {
  const void* x;
  DType x_type;
  const float* x_scale_inv;  // may be null
  std::int64_t rows, cols;
  float* sums;
  void* stream;
};

struct DequantizeArgs {
  const void* x;
  DType x_type;
  const float* scale_inv;  // may be null
  void* y;
  DType y_type;
  std::int64_t n;
  void* stream;
};

// sum = format(sum * *sum_scale_inv + x * *x_scale_inv) under a new power-of-two scale; stochastic;
// Inf becomes NaN.
struct AccumulateArgs {
  const void* x;
  DType x_type;
  const float* x_scale_inv;  // may be null
  void* sum;
  DType format;
  float* sum_scale_inv;
  std::int64_t n;
  void* stream;
};

// Key of the random bits of an accumulation, from the new sums before rounding: the bits of their
// maximum and a checksum, the wrapping sum of the bits of their magnitudes (every NaN counts as
// kNaNBits). Integer additions: any order gives the same key. The maxima alone would not do: a
// gradient in FP8 has few different ones, and equal keys repeat the same dither.
inline constexpr std::uint32_t kAccumulateStream = 3;  // purpose of random_key; 0 and 1 are Adam's
inline constexpr std::uint32_t kNaNBits = numerics::kInfBits + 1;
FP8AMP_HD std::uint32_t accumulate_key(std::uint32_t amax_bits, std::uint32_t checksum) {
  const std::uint32_t max = amax_bits < kNaNBits ? amax_bits : kNaNBits;
  return numerics::random_key(std::uint64_t(checksum) << 32 | max, 0, 0, kAccumulateStream);
}

namespace cpu {
void amax(const AmaxArgs& args);
void quantize(const QuantizeArgs& args);
void column_sums(const ColumnSumsArgs& args);
void dequantize(const DequantizeArgs& args);
void accumulate(const AccumulateArgs& args);
}  // namespace cpu

namespace cuda {
void amax(const AmaxArgs& args);
void quantize(const QuantizeArgs& args);
void column_sums(const ColumnSumsArgs& args);
void dequantize(const DequantizeArgs& args);
void accumulate(const AccumulateArgs& args);
}  // namespace cuda

}  // namespace fp8amp::kernels
