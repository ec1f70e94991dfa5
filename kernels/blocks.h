// Casts with a scale for each row or block: arguments and the two backends.
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/scale_layout.h>

#include <cstdint>

namespace fp8amp::kernels {

// One output: codes [rows, k] and scales in the layout of numerics/scale_layout.h.
struct BlockOutput {
  std::uint8_t* y;
  float* scale_inv;  // null: this output is not wanted
};

// x[rows, cols], contiguous: float32, float16 or bfloat16.
struct QuantizeBlocksArgs {
  const void* x;
  DType x_type;
  const float* x_scale_inv;  // may be null; one number
  std::int64_t rows, cols;
  DType format;
  ScaleGranularity granularity;  // not kTensor
  BlockOutput out;               // [rows, cols]
  BlockOutput transposed;        // [cols, rows], along its own rows
  ScaleRounding scale_rounding;
  int margin;
  Overflow overflow;
  float* found_inf;  // may be null
  void* stream;
};

struct DequantizeBlocksArgs {
  const std::uint8_t* x;
  DType x_type;
  const float* scale_inv;
  ScaleGranularity granularity;  // not kTensor
  std::int64_t rows, cols;
  void* y;
  DType y_type;
  void* stream;
};

namespace cpu {
void quantize_blocks(const QuantizeBlocksArgs& args);
void dequantize_blocks(const DequantizeBlocksArgs& args);
}  // namespace cpu
namespace cuda {
void quantize_blocks(const QuantizeBlocksArgs& args);
void dequantize_blocks(const DequantizeBlocksArgs& args);
}  // namespace cuda

}  // namespace fp8amp::kernels
