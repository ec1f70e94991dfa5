// FP8 GEMM: one FP32 chain per element, in the order of k.
#include "kernels/cpu/isa/loops.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

void gemm(const GemmLoop& l) {
  const DType a_type = l.a_e5m2 ? DType::kE5M2 : DType::kE4M3, b_type = l.b_e5m2 ? DType::kE5M2 : DType::kE4M3;
  for (std::int64_t m = l.m0; m < l.m1; ++m)
    for (std::int64_t n = l.n0; n < l.n1; ++n) {
      float sum = 0.0f;
      for (std::int64_t k = 0; k < l.k; ++k)
        sum = sum + load_element(l.a, a_type, m * l.a_row + k * l.a_k) * load_element(l.b, b_type, n * l.b_row + k * l.b_k);
      float d = sum * l.a_scale_inv * l.b_scale_inv;
      if (l.bias) d = d + load_element(l.bias, l.bias_type, n);
      if (l.accumulate) d = load_element(l.d, l.d_type, m * l.d_row + n) + d;
      store_element(l.d, l.d_type, m * l.d_row + n, d);
    }
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
