// Sum of two gradients in FP32, requantised.
#include "kernels/cpu/isa/loops.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

std::uint32_t accumulate(const AccumulateLoop& l) {
  std::uint32_t max = 0;
  for (std::int64_t i = 0; i < l.n; ++i) {
    const float value = load_element(l.sum, l.format, i) * l.sum_scale_inv + load_element(l.x, l.x_type, i) * l.x_scale_inv;
    max = numerics::max_bits(max, numerics::abs_bits(value));
    if (!l.measure)
      store_code(l.sum, l.format, i, value, l.scale, Rounding::kStochastic, Overflow::kNaN, numerics::random_bits(l.key, l.first + std::uint64_t(i)));
  }
  return max;
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
