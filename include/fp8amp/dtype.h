// Element types of tensors.
#pragma once
#include <fp8amp/export.h>

#include <cstdint>
#include <string>

namespace fp8amp {

enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kE4M3, kE5M2 };

constexpr std::int64_t size_in_bytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : dtype == DType::kE4M3 || dtype == DType::kE5M2 ? 1 : 2;
}
constexpr bool is_float8(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }

// The largest finite value of a storage format: 448, 57344 or 65504; FLT_MAX and its BF16 kin for
// the unscaled types.
FP8AMP_API float format_max(DType dtype);

// "float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2"
FP8AMP_API const char* name(DType dtype);

}  // namespace fp8amp
