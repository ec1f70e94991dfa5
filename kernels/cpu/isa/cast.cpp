// Casts to the storage formats, with the maximum of the input.
#include "kernels/cpu/isa/loops.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

std::uint32_t cast(const CastLoop& l) {
  std::uint32_t max = 0;
  for (std::int64_t i = 0; i < l.n; ++i) {
    float value = load_element(l.x, l.x_type, i);
    if (l.has_x_scale_inv) value = value * l.x_scale_inv;
    max = numerics::max_bits(max, numerics::abs_bits(value));
    const std::uint32_t random = l.rounding == Rounding::kStochastic ? numerics::random_bits(l.key, l.first + std::uint64_t(i)) : 0;
    store_code(l.y, l.format, i, value, l.scale, l.rounding, l.overflow, random);
  }
  return max;
}

std::uint32_t cast_transpose(const CastTransposeLoop& l) {
  std::uint32_t max = 0;
  for (std::int64_t r = 0; r < l.rows; ++r) {
    CastLoop row = l.cast;
    row.x = element_pointer(l.cast.x, l.cast.x_type, r * l.cols);
    row.y = element_pointer(l.cast.y, l.cast.format, r * l.cols);
    row.n = l.cols;
    max = numerics::max_bits(max, cast(row));
    for (std::int64_t c = 0; c < l.cols; ++c) l.yt[c * l.yt_stride + r] = static_cast<const std::uint8_t*>(row.y)[c];
  }
  return max;
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
