// What every launcher needs: types as template arguments, sizes of grids.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/vectors.cuh"

namespace fp8amp::kernels::cuda {

// body(std::integral_constant<DType, type>)
template <class Body>
void with_type(DType type, const Body& body) {
  switch (type) {
    case DType::kFloat32: return body(std::integral_constant<DType, DType::kFloat32>{});
    case DType::kFloat16: return body(std::integral_constant<DType, DType::kFloat16>{});
    case DType::kBFloat16: return body(std::integral_constant<DType, DType::kBFloat16>{});
    case DType::kE4M3: return body(std::integral_constant<DType, DType::kE4M3>{});
    case DType::kE5M2: return body(std::integral_constant<DType, DType::kE5M2>{});
  }
}
// The same where the type is float32, float16 or bfloat16, and where it is float8.
template <class Body>
void with_plain_type(DType type, const Body& body) {
  switch (type) {
    case DType::kFloat16: return body(std::integral_constant<DType, DType::kFloat16>{});
    case DType::kBFloat16: return body(std::integral_constant<DType, DType::kBFloat16>{});
    default: return body(std::integral_constant<DType, DType::kFloat32>{});
  }
}
template <class Body>
void with_float8_type(DType type, const Body& body) {
  if (type == DType::kE4M3) return body(std::integral_constant<DType, DType::kE4M3>{});
  body(std::integral_constant<DType, DType::kE5M2>{});
}
// body(E4M3{}), of the storage formats
template <class Body>
void with_float8(DType format, const Body& body) {
  format == DType::kE4M3 ? body(E4M3{}) : body(E5M2{});
}
template <class Body>
void with_format(DType format, const Body& body) {
  format == DType::kFloat16 ? body(Fp16{}) : with_float8(format, body);
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A block for each of `n` pieces of work, which the kernel walks over the grid.
inline dim3 grid_of(std::int64_t n) {
  return dim3(static_cast<unsigned>(std::clamp<std::int64_t>(n, 1, 1 << 20)));
}

// Blocks for `n` elements at 16 a thread: enough to fill every processor eight times over, and no
// more.
inline dim3 grid_for(std::int64_t n) {
  const std::int64_t wanted = ceil_div(n, kThreads * kVector);
  return dim3(static_cast<unsigned>(
      std::clamp<std::int64_t>(wanted, 1, 8 * std::int64_t(device_facts().num_processors))));
}

}  // namespace fp8amp::kernels::cuda
