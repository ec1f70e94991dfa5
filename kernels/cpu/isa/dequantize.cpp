// Storage formats to plain numbers.
#include "kernels/cpu/isa/loops.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

void dequantize(const DequantizeLoop& l) {
  for (std::int64_t i = 0; i < l.n; ++i) {
    float value = load_element(l.x, l.x_type, i);
    if (l.has_scale_inv) value = value * l.scale_inv;
    store_element(l.y, l.y_type, i, value);
  }
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
