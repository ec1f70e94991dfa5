// Casts to the storage formats, with the maximum of the input. Scales are positive and finite.
#include "kernels/cpu/isa/cast.h"

#include "kernels/cpu/isa/padding.h"
#include "kernels/cpu/isa/simd_convert.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {
namespace {

template <DType X, bool kScaled>
inline Group load_values(const void* x, float x_scale_inv) {
  Group g = load_group<X>(x);
  if constexpr (kScaled)
    for (F32& v : g.v) v = v * x_scale_inv;
  return g;
}

// Casts n < kGroup elements.
template <DType X, class F>
void cast_rest(const CastLoop& loop, const void* x, void* y, std::int64_t n, std::uint64_t first,
               U32& max, CastRange cast_range) {
  const auto run = [&](const void* px, void* py) { cast_range(loop, px, py, kGroup, first, max); };
  with_padding<size_in_bytes(X), sizeof(typename F::Bits)>(x, y, n, run);
}

// Straight from memory to codes.
template <DType X, bool kScaled, class F, Rounding R, Overflow O>
[[gnu::noinline]] void cast_direct(const CastLoop& loop, const void* x, void* y, std::int64_t n,
                                   std::uint64_t first, U32& max) {
  const float scale = loop.scale,
              x_scale_inv =
                  loop.x_scale_inv;  // copies: a store through a byte pointer could change the loop
  const std::uint32_t key = loop.key;
  const numerics::Draw draw = loop.draw;
  const std::int64_t whole = n / kGroup * kGroup;
  typename F::Bits* codes = static_cast<typename F::Bits*>(y);
  U32 m = max;
  for (std::int64_t i = 0; i < whole; i += kGroup) {
    const Group g = load_values<X, kScaled>(element_pointer(x, X, i), x_scale_inv);
    for (int j = 0; j < 4; ++j) m = max_bits(m, magnitude(g.v[j]));
    RandomGroup random;
    if constexpr (R == Rounding::kStochastic)
      random = random_group(key, first + std::uint64_t(i), draw);
    encode_group<F, R, O>(codes + i, g, scale, random);
  }
  max = m;
  if (whole == n) return;
  cast_rest<X, F>(loop, element_pointer(x, X, whole), codes + whole, n - whole,
                  first + std::uint64_t(whole), max, cast_direct<X, kScaled, F, R, O>);
}

// BF16 to FP8, nearest: the even elements of a vector are shifted up, the odd ones masked in place,
// so that nothing is widened and only one narrowing is left. Rounding as in code_of(), but by a
// product (e * 2^kShift), which saturates at Inf where an addition to the exponent would wrap: one
// minimum on 16-bit codes then clamps both halves.
template <class F>
inline U32 raw_code(U32 scaled) {
  constexpr int kShift = 23 - F::kMantissaBits;
  const U32 e = max_bits(scaled & kInfBits, all(std::uint32_t(128 - F::kBias) << 23));
  const U32 t = bits(floats(scaled) + floats(e) * float(1 << kShift));
  return t + (t >> kShift);  // in the low 16 bits: code + kOffset
}
template <class F, Overflow O>
inline U16 cast_bfloat16(U16 x, float scale, U16& max) {
  constexpr int kOffset = (128 - F::kBias + 23 - F::kMantissaBits) << F::kMantissaBits;
  const U16 a = x & std::uint16_t(0x7fff);
  max = max > a ? max : a;
  const U32 w = std::bit_cast<U32>(a);
  const U32 even = raw_code<F>(bits(floats(w << 16) * scale)),
            odd = raw_code<F>(bits(floats(w & 0xffff0000u) * scale));
  I16 code = std::bit_cast<I16>((even & 0xffffu) | (odd << 16));
  const I16 limit = I16{} + std::int16_t(kOffset + F::kMaxCode);
  code = (code < limit ? code : limit) - std::int16_t(kOffset);
  const U16 r = std::bit_cast<U16>(code) | (x >> 8 & std::uint16_t(F::kSign));
  constexpr std::uint16_t kLast = O == Overflow::kNaN ? 0x7f7f : 0x7f80;
  return std::bit_cast<I16>(a) > std::int16_t(kLast) ? all(std::uint16_t(F::kNaNCode)) : r;
}
template <class F, Overflow O>
[[gnu::noinline]] void cast_bfloat16_nearest(const CastLoop& loop, const void* x, void* y,
                                             std::int64_t n, std::uint64_t first, U32& max) {
  const float scale = loop.scale;
  const std::int64_t whole = n / kGroup * kGroup;
  const std::uint16_t* values = static_cast<const std::uint16_t*>(x);
  std::uint8_t* codes = static_cast<std::uint8_t*>(y);
  U16 m{};
  for (std::int64_t i = 0; i < whole; i += kGroup) {
    const U16 a = cast_bfloat16<F, O>(load<U16>(values + i), scale, m);
    const U16 b = cast_bfloat16<F, O>(load<U16>(values + i + kGroup / 2), scale, m);
    store(codes + i, narrow(a, b));
  }
  const U32 w = std::bit_cast<U32>(m);
  max = max_bits(max, max_bits(w << 16, w & 0xffff0000u));
  if (whole != n)
    cast_rest<DType::kBFloat16, F>(loop, values + whole, codes + whole, n - whole, first, max,
                                   cast_bfloat16_nearest<F, O>);
}

// Everything else by way of FP32 in L1.
constexpr std::int64_t kBlock = 1024;
template <DType X, bool kScaled>
[[gnu::noinline]] void load_block(const void* x, float x_scale_inv, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup)
    store_group<DType::kFloat32>(y + i,
                                 load_values<X, kScaled>(element_pointer(x, X, i), x_scale_inv));
  for (; i < n; ++i) y[i] = kScaled ? load_element(x, X, i) * x_scale_inv : load_element(x, X, i);
}
template <DType X>
void load_block(const CastLoop& loop, const void* x, float* y, std::int64_t n) {
  loop.has_x_scale_inv ? load_block<X, true>(x, loop.x_scale_inv, y, n)
                       : load_block<X, false>(x, 1.0f, y, n);
}
[[gnu::noinline]] void load_block(const CastLoop& loop, const void* x, float* y, std::int64_t n) {
  switch (loop.x_type) {
    case DType::kFloat32: return load_block<DType::kFloat32>(loop, x, y, n);
    case DType::kFloat16: return load_block<DType::kFloat16>(loop, x, y, n);
    case DType::kBFloat16: return load_block<DType::kBFloat16>(loop, x, y, n);
    case DType::kE4M3: return load_block<DType::kE4M3>(loop, x, y, n);
    case DType::kE5M2: return load_block<DType::kE5M2>(loop, x, y, n);
  }
}
template <class F, Rounding R, Overflow O>
void cast_by_blocks(const CastLoop& loop, const void* x, void* y, std::int64_t n,
                    std::uint64_t first, U32& max) {
  alignas(64) float values[kBlock];
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = n - i < kBlock ? n - i : kBlock;
    load_block(loop, element_pointer(x, loop.x_type, i), values, count);
    cast_direct<DType::kFloat32, false, F, R, O>(
        loop, values, static_cast<typename F::Bits*>(y) + i, count, first + std::uint64_t(i), max);
  }
}

template <class F, Rounding R, Overflow O>
CastRange choose(const CastLoop& loop) {
  constexpr bool kNearestByte = R == Rounding::kNearest && sizeof(typename F::Bits) == 1;
  if (loop.x_type == DType::kFloat32 && !loop.has_x_scale_inv)
    return cast_direct<DType::kFloat32, false, F, R, O>;
  if constexpr (kNearestByte) {
    if (loop.x_type == DType::kBFloat16 && !loop.has_x_scale_inv)
      return cast_bfloat16_nearest<F, O>;
    if (loop.x_type == DType::kFloat16 && loop.has_x_scale_inv)
      return cast_direct<DType::kFloat16, true, F, R, O>;  // weights
  }
  return cast_by_blocks<F, R, O>;
}
template <class F>
CastRange choose(const CastLoop& loop) {
  const bool nan = loop.overflow == Overflow::kNaN;
  if (loop.rounding == Rounding::kNearest)
    return nan ? choose<F, Rounding::kNearest, Overflow::kNaN>(loop)
               : choose<F, Rounding::kNearest, Overflow::kSaturate>(loop);
  return nan ? choose<F, Rounding::kStochastic, Overflow::kNaN>(loop)
             : choose<F, Rounding::kStochastic, Overflow::kSaturate>(loop);
}

}  // namespace

CastRange choose_cast(const CastLoop& loop) {
  return loop.format == DType::kE4M3   ? choose<E4M3>(loop)
         : loop.format == DType::kE5M2 ? choose<E5M2>(loop)
                                       : choose<Fp16>(loop);
}

std::uint32_t cast(const CastLoop& loop) {
  U32 max{};
  choose_cast(loop)(loop, loop.x, loop.y, loop.n, loop.first, max);
  return largest(max);
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
