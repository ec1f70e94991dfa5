// dequantize() of a tensor with a scale for each row or block.
#pragma once
#include <fp8amp/scaled_tensor.h>

namespace fp8amp {

void dequantize_blocks(const ScaledTensor& x, const Tensor& out, void* stream);

}  // namespace fp8amp
