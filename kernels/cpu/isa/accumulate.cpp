// Sum of two gradients in FP32, requantised.
#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/padding.h"
#include "kernels/cpu/isa/simd_convert.h"
#include "kernels/element.h"
#include "kernels/quantize.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {
namespace {

template <class F>
constexpr DType kTypeOf = DType::kFloat16;
template <>
constexpr DType kTypeOf<E4M3> = DType::kE4M3;
template <>
constexpr DType kTypeOf<E5M2> = DType::kE5M2;

template <DType X, class F, bool kMeasure>
[[gnu::noinline]] std::uint32_t accumulate_pass(const AccumulateLoop& l) {
  constexpr DType kSum = kTypeOf<F>;
  const AccumulateLoop a =
      l;  // a copy: stores through a byte pointer could change what `l` refers to
  const std::int64_t whole = a.n / kGroup * kGroup;
  U32 max{}, checksum{};
  for (std::int64_t i = 0; i < whole; i += kGroup) {
    const Group x = load_group<X>(element_pointer(a.x, X, i));
    void* p = element_pointer(a.sum, kSum, i);
    Group sum = load_group<kSum>(p);
    for (int j = 0; j < 4; ++j) {
      sum.v[j] = sum.v[j] * a.sum_scale_inv + x.v[j] * a.x_scale_inv;
      const U32 bits = magnitude(sum.v[j]);
      max = max_bits(max, bits);
      if constexpr (kMeasure) checksum += bits > kNaNBits ? U32{} + kNaNBits : bits;
    }
    if constexpr (!kMeasure)
      encode_group<F, Rounding::kStochastic, Overflow::kNaN>(
          static_cast<typename F::Bits*>(p), sum, a.scale,
          random_group(a.key, a.first + std::uint64_t(i), numerics::Draw::kFirst));
  }
  if constexpr (kMeasure)
    for (int lane = 0; lane < kLanes; ++lane) *a.checksum += checksum[lane];
  std::uint32_t result = largest(max);
  if (whole == a.n) return result;
  const auto run = [&](const void* x, void* sum) {
    AccumulateLoop rest = a;
    rest.x = x;
    rest.sum = sum;
    rest.n = kGroup;
    rest.first = a.first + std::uint64_t(whole);
    result = numerics::max_bits(result, accumulate_pass<X, F, kMeasure>(rest));
  };
  with_padding<size_in_bytes(X), size_in_bytes(kSum)>(
      element_pointer(a.x, X, whole), element_pointer(a.sum, kSum, whole), a.n - whole, run);
  return result;
}

template <DType X, class F>
std::uint32_t accumulate_from(const AccumulateLoop& l) {
  return l.measure ? accumulate_pass<X, F, true>(l) : accumulate_pass<X, F, false>(l);
}

template <class F>
std::uint32_t accumulate_to(const AccumulateLoop& l) {
  switch (l.x_type) {
    case DType::kFloat32: return accumulate_from<DType::kFloat32, F>(l);
    case DType::kFloat16: return accumulate_from<DType::kFloat16, F>(l);
    case DType::kBFloat16: return accumulate_from<DType::kBFloat16, F>(l);
    case DType::kE4M3: return accumulate_from<DType::kE4M3, F>(l);
    case DType::kE5M2: return accumulate_from<DType::kE5M2, F>(l);
  }
  return 0;
}

}  // namespace

std::uint32_t accumulate(const AccumulateLoop& l) {
  return l.format == DType::kE4M3   ? accumulate_to<E4M3>(l)
         : l.format == DType::kE5M2 ? accumulate_to<E5M2>(l)
                                    : accumulate_to<Fp16>(l);
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
