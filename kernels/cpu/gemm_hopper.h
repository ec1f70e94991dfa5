// The GEMM with the accumulators of numerics/hopper.h.
#pragma once
#include "kernels/gemm.h"

namespace fp8amp::kernels::cpu {

void gemm_hopper(const GemmArgs& args);

}  // namespace fp8amp::kernels::cpu
