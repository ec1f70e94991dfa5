// Storage formats to plain numbers.
#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/padding.h"
#include "kernels/cpu/isa/simd_convert.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {
namespace {

template <DType X, DType Y, bool kScaled>
[[gnu::noinline]] void dequantize_to(const DequantizeLoop& l) {
  const float scale_inv = l.scale_inv;
  const std::int64_t whole = l.n / kGroup * kGroup;
  for (std::int64_t i = 0; i < whole; i += kGroup) {
    Group g = load_group<X>(element_pointer(l.x, X, i));
    if constexpr (kScaled)
      for (F32& v : g.v) v = v * scale_inv;
    store_group<Y>(element_pointer(l.y, Y, i), g);
  }
  if (whole == l.n) return;
  const auto run = [&](const void* x, void* y) {
    DequantizeLoop rest = l;
    rest.x = x;
    rest.y = y;
    rest.n = kGroup;
    dequantize_to<X, Y, kScaled>(rest);
  };
  with_padding<size_in_bytes(X), size_in_bytes(Y)>(
      element_pointer(l.x, X, whole), element_pointer(l.y, Y, whole), l.n - whole, run);
}

template <DType X, DType Y>
void dequantize_to(const DequantizeLoop& l) {
  l.has_scale_inv ? dequantize_to<X, Y, true>(l) : dequantize_to<X, Y, false>(l);
}

template <DType X>
void dequantize_from(const DequantizeLoop& l) {
  switch (l.y_type) {
    case DType::kFloat32: return dequantize_to<X, DType::kFloat32>(l);
    case DType::kFloat16: return dequantize_to<X, DType::kFloat16>(l);
    default: return dequantize_to<X, DType::kBFloat16>(l);
  }
}

}  // namespace

void dequantize(const DequantizeLoop& l) {
  switch (l.x_type) {
    case DType::kFloat32: return dequantize_from<DType::kFloat32>(l);
    case DType::kFloat16: return dequantize_from<DType::kFloat16>(l);
    case DType::kBFloat16: return dequantize_from<DType::kBFloat16>(l);
    case DType::kE4M3: return dequantize_from<DType::kE4M3>(l);
    case DType::kE5M2: return dequantize_from<DType::kE5M2>(l);
  }
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
