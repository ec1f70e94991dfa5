// Adam over a range of one tensor.
#include "kernels/cpu/isa/loops.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {
namespace {

// A state or weight in any precision: plain FP32, or codes under a scale.
void store(void* y, DType type, std::int64_t i, float value, float scale, Rounding rounding, std::uint32_t key, std::uint64_t element) {
  if (type == DType::kFloat32) return store_element(y, type, i, value);
  const std::uint32_t random = rounding == Rounding::kStochastic ? numerics::random_bits(key, element) : 0;
  store_code(y, type, i, value, scale, rounding, Overflow::kSaturate, random);
}

void store_second_moment(void* y, DType type, std::int64_t i, float v, float scale, Rounding rounding, std::uint32_t key, std::uint64_t element) {
  using namespace numerics;
  const std::uint32_t random = rounding == Rounding::kStochastic ? random_bits(key, element) : 0;
  switch (type) {
    case DType::kFloat16: static_cast<std::uint16_t*>(y)[i] = encode_second_moment<Fp16>(v, scale, rounding, random); break;
    case DType::kE4M3: static_cast<std::uint8_t*>(y)[i] = encode_second_moment<E4M3>(v, scale, rounding, random); break;
    case DType::kE5M2: static_cast<std::uint8_t*>(y)[i] = encode_second_moment<E5M2>(v, scale, rounding, random); break;
    default: store_element(y, type, i, v); break;
  }
}

}  // namespace

AdamMaxima adam(const AdamLoop& l) {
  using namespace numerics;
  AdamMaxima max{};
  for (std::int64_t i = 0; i < l.n; ++i) {
    const AdamElement e = adam_element(l.scalars, load_element(l.p, l.p_type, i), load_element(l.g, l.g_type, i),
                                       load_element(l.m, l.m_type, i), load_element(l.v, l.v_type, i));
    max = {max_bits(max.p, abs_bits(e.p)), max_bits(max.m, abs_bits(e.m)), max_bits(max.v, abs_bits(e.v))};
    const std::uint64_t element = l.first + std::uint64_t(i);
    store(l.p, l.p_type, i, e.p, l.scalars.p_scale, l.p_rounding, l.p_key, element);
    store(l.m, l.m_type, i, e.m, l.scalars.m_scale, l.m_rounding, l.m_key, element);
    store_second_moment(l.v, l.v_type, i, e.v, l.scalars.v_scale, l.v_rounding, l.v_key, element);
  }
  return max;
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
