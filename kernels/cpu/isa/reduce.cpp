// Maxima, sums of squares, products with a scalar.
#include "kernels/cpu/isa/loops.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

std::uint32_t amax(const void* x, DType x_type, std::int64_t n) {
  std::uint32_t max = 0;
  for (std::int64_t i = 0; i < n; ++i) max = numerics::max_bits(max, numerics::abs_bits(load_element(x, x_type, i)));
  return max;
}

double sum_of_squares(const void* x, DType x_type, std::int64_t n) {
  double part[8] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = load_element(x, x_type, i);
    part[i % 8] += value * value;
  }
  double sum = 0;
  for (double p : part) sum += p;
  return sum;
}

void scale_values(void* x, DType x_type, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) store_element(x, x_type, i, load_element(x, x_type, i) * factor);
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
