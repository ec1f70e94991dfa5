// One element of any dtype: the scalar body of loads and stores.
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/adam_update.h>
#include <fp8amp/numerics/random.h>

#include <cstdint>

namespace fp8amp::kernels {

FP8AMP_HD float load_element(const void* x, DType type, std::int64_t i) {
  using namespace numerics;
  switch (type) {
    case DType::kFloat32: return static_cast<const float*>(x)[i];
    case DType::kFloat16: return half_to_float(static_cast<const std::uint16_t*>(x)[i]);
    case DType::kBFloat16: return bfloat16_to_float(static_cast<const std::uint16_t*>(x)[i]);
    case DType::kE4M3: return decode<E4M3>(static_cast<const std::uint8_t*>(x)[i]);
    case DType::kE5M2: return decode<E5M2>(static_cast<const std::uint8_t*>(x)[i]);
  }
  return 0.0f;
}

// Plain numbers: float32, float16, bfloat16; nearest even, Inf stays Inf.
FP8AMP_HD void store_element(void* y, DType type, std::int64_t i, float value) {
  switch (type) {
    case DType::kFloat32: static_cast<float*>(y)[i] = value; break;
    case DType::kFloat16: static_cast<std::uint16_t*>(y)[i] = numerics::float_to_half(value); break;
    default: static_cast<std::uint16_t*>(y)[i] = numerics::float_to_bfloat16(value); break;
  }
}

// Codes of a storage format: E4M3, E5M2 or scaled FP16.
FP8AMP_HD void store_code(void* y, DType format, std::int64_t i, float value, float scale,
                          Rounding rounding, Overflow overflow, std::uint32_t random) {
  using namespace numerics;
  switch (format) {
    case DType::kE4M3:
      static_cast<std::uint8_t*>(y)[i] =
          quantize_element<E4M3>(value, scale, rounding, overflow, random);
      break;
    case DType::kE5M2:
      static_cast<std::uint8_t*>(y)[i] =
          quantize_element<E5M2>(value, scale, rounding, overflow, random);
      break;
    default:
      static_cast<std::uint16_t*>(y)[i] =
          quantize_element<Fp16>(value, scale, rounding, overflow, random);
      break;
  }
}

FP8AMP_HD const void* element_pointer(const void* x, DType type, std::int64_t i) {
  return static_cast<const char*>(x) + i * size_in_bytes(type);
}
FP8AMP_HD void* element_pointer(void* x, DType type, std::int64_t i) {
  return static_cast<char*>(x) + i * size_in_bytes(type);
}

}  // namespace fp8amp::kernels
