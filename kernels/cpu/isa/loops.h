// The inner loops of the CPU backend. The files of this folder are compiled once per
// instruction-set level, each time in a namespace of its own (FP8AMP_ISA = v2, v3, v4 or baseline);
// kernels/cpu/isa.h picks one at run time. Each loop is single-threaded and gives the bits of its
// scalar definition in numerics/.
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/adam_update.h>
#include <fp8amp/numerics/random.h>
#include <fp8amp/numerics/scale_layout.h>

#include <cstdint>

#include "kernels/fused.h"

namespace fp8amp::kernels::cpu {

// y[i] = format(value * scale), value = x[i] (* x_scale_inv if has_x_scale_inv); returns the bits
// of max |value|. numerics::quantize_element is the definition; the random bits are
// random_bits(key, first + i, draw).
struct CastLoop {
  const void* x;
  DType x_type;
  bool has_x_scale_inv;
  float x_scale_inv;
  void* y;
  DType format;  // kE4M3, kE5M2, kFloat16
  float scale;
  std::int64_t n;
  Rounding rounding;
  Overflow overflow;
  std::uint32_t key;
  std::uint64_t first;  // a multiple of 16
  numerics::Draw draw = numerics::Draw::kFirst;
};

// The same on rows [0, rows) of x[., cols]; codes also to yt[c * yt_stride + r]. Nearest rounding,
// float8.
struct CastTransposeLoop {
  CastLoop cast;  // x, y: first row of the range; n unused
  std::int64_t rows, cols;
  std::uint8_t* yt;
  std::int64_t yt_stride;
  float* column_sums;  // [rows / 32 rounded up, cols], += the values; may be null
};

// sums[c] += x[r, c] * x_scale_inv, row by row; a row of x begins x_row elements behind the last.
struct AddRowsLoop {
  const void* x;
  DType x_type;
  float x_scale_inv;
  std::int64_t rows, cols, x_row;
  float* sums;
};

// y[i] = x[i] * scale_inv (if has_scale_inv), rounded to y_type (float32, float16, bfloat16).
struct DequantizeLoop {
  const void* x;
  DType x_type;
  bool has_scale_inv;
  float scale_inv;
  void* y;
  DType y_type;
  std::int64_t n;
};

// value = sum[i] * sum_scale_inv + x[i] * x_scale_inv; returns the bits of max |value|; writes
// codes (stochastic, Inf becomes NaN) unless `measure`.
struct AccumulateLoop {
  const void* x;
  DType x_type;
  float x_scale_inv;
  void* sum;
  DType format;
  float sum_scale_inv;
  float scale;
  std::int64_t n;
  bool measure;
  std::uint32_t key;
  std::uint64_t first;
  std::uint32_t* checksum;  // if `measure`: += bits of |value|, kNaNBits for NaN, wrapping
};

// The scales of an operand of a product; a null pointer is 1 for all.
struct GemmScales {
  const float* scale_inv;
  numerics::ScaleLayout layout;
};

// D rows [m0, m1), columns [n0, n1) of a kernels::GemmArgs.
struct GemmLoop {
  const std::uint8_t *a, *b;
  bool a_e5m2, b_e5m2;
  std::int64_t a_row, a_k, b_row, b_k;
  GemmScales a_scales, b_scales;
  bool scales_along_k;  // of a or b
  void* d;
  DType d_type;
  std::int64_t d_row;  // elements between rows of D
  const void* bias;    // may be null
  DType bias_type;
  std::int64_t m0, m1, n0, n1, k;
  bool accumulate;
};

// Elements [0, n) at the given pointers; `first` is the index of element 0 in its tensor, a
// multiple of 16.
struct AdamLoop {
  void* p;
  const void* g;
  void* m;
  void* v;
  DType p_type, g_type, m_type, v_type;
  numerics::AdamScalars scalars;
  Rounding p_rounding, m_rounding, v_rounding;
  std::uint32_t key, v_key;  // m takes the first draw of `key`, p the second
  std::int64_t n;
  std::uint64_t first;
};
struct AdamMaxima {
  std::uint32_t p, m, v;  // the largest codes written, without their signs (float32: bits of |x|):
                          // NaN > Inf > finite
};

// One row of a kernels::FusedArgs in FP32, or a part of one. The halves of a row of SwiGLU (gate,
// up) lie n apart, in x and in the gradient y.
struct FusedRow {
  FusedOp op;
  GeluForm form;
  const float *x, *dy;
  const float *gamma, *beta;  // beta may be null
  float mean, rstd;
  float* y;
  std::int64_t n;
};

// One row of a kernels::NormBackwardArgs in FP32; adds dy * h to dgamma and dy to dbeta.
struct NormBackwardRow {
  const float *dy, *x, *gamma;
  bool centered;  // LayerNorm
  float mean, rstd;
  float *dx, *dgamma, *dbeta;  // dbeta may be null
  std::int64_t n;
};

struct Loops {
  std::uint32_t (*amax)(const void* x, DType x_type,
                        std::int64_t n);  // bits of max |x|, of the plain numbers
  std::uint32_t (*cast)(const CastLoop& loop);
  std::uint32_t (*cast_transpose)(const CastTransposeLoop& loop);
  void (*dequantize)(const DequantizeLoop& loop);
  std::uint32_t (*accumulate)(const AccumulateLoop& loop);
  double (*sum_of_squares)(const void* x, DType x_type,
                           std::int64_t n);  // 8 FP64 partial sums by i % 8, then added in order
  void (*scale_values)(void* x, DType x_type, float factor, std::int64_t n);  // x *= factor
  void (*gemm)(const GemmLoop& loop);
  AdamMaxima (*adam)(const AdamLoop& loop);
  void (*add_rows)(const AddRowsLoop& loop);
  float (*row_sum)(const float* x, std::int64_t n);  // in the order of numerics/normalize.h
  float (*row_deviation)(const float* x, std::int64_t n, float mean);  // sum of (x - mean)^2
  void (*fused_row)(const FusedRow& row);
  // Bits of max |result| of a row (y: scratch), or `seen` where that is larger.
  std::uint32_t (*fused_row_amax)(const FusedRow& row, std::uint32_t seen);
  void (*norm_backward_row)(const NormBackwardRow& row);
};

#define FP8AMP_DECLARE_LOOPS(isa)                                         \
  namespace isa {                                                         \
  std::uint32_t amax(const void* x, DType x_type, std::int64_t n);        \
  std::uint32_t cast(const CastLoop& loop);                               \
  std::uint32_t cast_transpose(const CastTransposeLoop& loop);            \
  void dequantize(const DequantizeLoop& loop);                            \
  std::uint32_t accumulate(const AccumulateLoop& loop);                   \
  double sum_of_squares(const void* x, DType x_type, std::int64_t n);     \
  void scale_values(void* x, DType x_type, float factor, std::int64_t n); \
  void gemm(const GemmLoop& loop);                                        \
  AdamMaxima adam(const AdamLoop& loop);                                  \
  void add_rows(const AddRowsLoop& loop);                                 \
  float row_sum(const float* x, std::int64_t n);                          \
  float row_deviation(const float* x, std::int64_t n, float mean);        \
  void fused_row(const FusedRow& row);                                    \
  std::uint32_t fused_row_amax(const FusedRow& row, std::uint32_t seen);  \
  void norm_backward_row(const NormBackwardRow& row);                     \
  }

FP8AMP_DECLARE_LOOPS(v2)
FP8AMP_DECLARE_LOOPS(v3)
FP8AMP_DECLARE_LOOPS(v4)
FP8AMP_DECLARE_LOOPS(baseline)

}  // namespace fp8amp::kernels::cpu
