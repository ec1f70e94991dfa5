// Adam over a range of one tensor, in blocks that stay in the L1 cache. numerics::adam_element is
// the definition.
#include <algorithm>

#include "kernels/cpu/isa/adam_o1.h"
#include "kernels/cpu/isa/adam_o2.h"
#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {
namespace {

using numerics::AdamElement;
using numerics::Draw;

// Float32 tensors are worked on in place; the others are decoded into a buffer.
float* load_block(void* x, DType type, std::int64_t n, float* buffer) {
  if (type == DType::kFloat32) return static_cast<float*>(x);
  dequantize({x, type, false, 1.0f, buffer, DType::kFloat32, n});
  return buffer;
}

template <class Code>
std::uint32_t largest_code(const void* codes, std::int64_t n) {
  const Code* c = static_cast<const Code*>(codes);
  constexpr Code kMagnitude = static_cast<Code>(~Code(0)) >> 1;
  Code max = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const Code a = c[i] & kMagnitude;
    max = a > max ? a : max;
  }
  return max;
}

struct BlockStore {
  void* y;
  DType type;
  float scale;
  Rounding rounding;
  std::uint32_t key;
  numerics::Draw draw;
};

// Encodes a block (float32 is already in place); returns the largest code.
std::uint32_t store_block(const BlockStore& s, const float* x, std::int64_t n, std::uint64_t first,
                          std::uint32_t float_max) {
  if (s.type == DType::kFloat32) return float_max;
  cast({x, DType::kFloat32, false, 1.0f, s.y, s.type, s.scale, n, s.rounding, Overflow::kSaturate,
        s.key, first, s.draw});
  return is_float8(s.type) ? largest_code<std::uint8_t>(s.y, n)
                           : largest_code<std::uint16_t>(s.y, n);
}

// How v' leaves update_block: as it is, or times scale and, if positive, at least the format's
// smallest code, to be cast with scale 1.
enum class SecondMoment : std::uint8_t { kFloat, kScaled };
float smallest_code(DType type) {
  return type == DType::kE4M3 ? 0x1p-9f : type == DType::kE5M2 ? 0x1p-16f : 0x1p-24f;
}

// adam_element on n elements in place; returns the bits of the largest magnitudes (of v' where it
// is a float).
template <SecondMoment kV>
AdamMaxima update_block(const AdamScalars& s, float smallest, float* p, const float* g, float* m,
                        float* v, std::int64_t n) {
  const F32 grad = all(s.grad), m_keep = all(s.m_keep), m_add = all(s.m_add),
            v_keep = all(s.v_keep), v_add = all(s.v_add);
  const F32 eps = all(s.eps), step = all(s.step), p_keep = all(s.p_keep), p_l2 = all(s.p_l2),
            v_scale = all(s.v_scale);
  const bool l2 = s.p_l2 != 0.0f;
  U32 max_p{}, max_m{}, max_v{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F32 P = load<F32>(p + i);
    F32 G = load<F32>(g + i) * grad;
    if (l2) G = G + P * p_l2;
    const F32 M = load<F32>(m + i) * m_keep + m_add * G;
    const F32 V = load<F32>(v + i) * v_keep + v_add * (G * G);
    const F32 W = P * p_keep - step * (M / (sqrt(V) + eps));
    store(m + i, M);
    store(p + i, W);
    max_p = max_bits(max_p, magnitude(W));
    max_m = max_bits(max_m, magnitude(M));
    if constexpr (kV == SecondMoment::kFloat) {
      store(v + i, V);
      max_v = max_bits(max_v, magnitude(V));
    } else {
      const U32 scaled = bits(V * v_scale);
      store(v + i, select(greater(bits(V), U32{}), max_bits(scaled, bits(all(smallest))), scaled));
    }
  }
  AdamMaxima max{largest(max_p), largest(max_m), largest(max_v)};
  for (; i < n; ++i) {
    const AdamElement e = numerics::adam_element(s, p[i], g[i], m[i], v[i]);
    p[i] = e.p, m[i] = e.m, v[i] = e.v;
    max = {std::max(max.p, numerics::abs_bits(e.p)), std::max(max.m, numerics::abs_bits(e.m)),
           std::max(max.v, numerics::abs_bits(e.v))};
    if constexpr (kV == SecondMoment::kScaled)
      v[i] = e.v > 0.0f ? std::max(e.v * s.v_scale, smallest) : e.v * s.v_scale;
  }
  return max;
}

AdamMaxima largest_of(const AdamMaxima& a, const AdamMaxima& b) {
  return {std::max(a.p, b.p), std::max(a.m, b.m), std::max(a.v, b.v)};
}

AdamMaxima all_floats(const AdamLoop& l) {
  return update_block<SecondMoment::kFloat>(
      l.scalars, 0.0f, static_cast<float*>(l.p), static_cast<const float*>(l.g),
      static_cast<float*>(l.m), static_cast<float*>(l.v), l.n);
}

AdamMaxima any_types(const AdamLoop& l) {
  const auto update = l.v_type == DType::kFloat32 ? update_block<SecondMoment::kFloat>
                                                  : update_block<SecondMoment::kScaled>;
  alignas(64) float p_buffer[kBlock], g_buffer[kBlock], m_buffer[kBlock], v_buffer[kBlock];
  AdamMaxima max{};
  for (std::int64_t i = 0; i < l.n; i += kBlock) {
    const std::int64_t n = std::min(kBlock, l.n - i);
    const std::uint64_t first = l.first + static_cast<std::uint64_t>(i);
    const BlockStore p_store{element_pointer(l.p, l.p_type, i),
                             l.p_type,
                             l.scalars.p_scale,
                             l.p_rounding,
                             l.key,
                             Draw::kSecond};
    const BlockStore m_store{element_pointer(l.m, l.m_type, i),
                             l.m_type,
                             l.scalars.m_scale,
                             l.m_rounding,
                             l.key,
                             Draw::kFirst};
    const BlockStore v_store{
        element_pointer(l.v, l.v_type, i), l.v_type, 1.0f, l.v_rounding, l.v_key, Draw::kFirst};
    float* p = load_block(p_store.y, l.p_type, n, p_buffer);
    float* m = load_block(m_store.y, l.m_type, n, m_buffer);
    float* v = load_block(v_store.y, l.v_type, n, v_buffer);
    const float* g =
        load_block(const_cast<void*>(element_pointer(l.g, l.g_type, i)), l.g_type, n, g_buffer);
    const AdamMaxima floats = update(l.scalars, smallest_code(l.v_type), p, g, m, v, n);
    max = largest_of(max, {store_block(p_store, p, n, first, floats.p),
                           store_block(m_store, m, n, first, floats.m),
                           store_block(v_store, v, n, first, floats.v)});
  }
  return max;
}

#ifdef FP8AMP_ADAM_O2
AdamLoop part(const AdamLoop& l, std::int64_t begin, std::int64_t end) {
  AdamLoop r = l;
  r.p = element_pointer(l.p, l.p_type, begin);
  r.g = element_pointer(l.g, l.g_type, begin);
  r.m = element_pointer(l.m, l.m_type, begin);
  r.v = element_pointer(l.v, l.v_type, begin);
  r.n = end - begin;
  r.first = l.first + static_cast<std::uint64_t>(begin);
  return r;
}

// Whole groups by `fast`, in pieces inside which the upper half of the random word index does not
// change; what is left by any_types.
AdamMaxima fast_and_rest(const AdamLoop& l, AdamMaxima (*fast)(const AdamLoop&)) {
  constexpr std::uint64_t kPiece = std::uint64_t(1) << 33;
  AdamMaxima max{};
  for (std::int64_t begin = 0, end; begin < l.n; begin = end) {
    const std::uint64_t first = l.first + static_cast<std::uint64_t>(begin);
    end = begin + static_cast<std::int64_t>(
                      std::min(kPiece - first % kPiece, static_cast<std::uint64_t>(l.n - begin)));
    const std::int64_t whole = begin + (end - begin) / kGroup * kGroup;
    max = largest_of(max, fast(part(l, begin, whole)));
    max = largest_of(max, any_types(part(l, whole, end)));
  }
  return max;
}
#endif

}  // namespace

AdamMaxima adam(const AdamLoop& loop) {
  constexpr DType kFloat = DType::kFloat32;
  if (loop.p_type == kFloat && loop.g_type == kFloat && loop.m_type == kFloat &&
      loop.v_type == kFloat)
    return all_floats(loop);
#ifdef FP8AMP_ADAM_O2
  if (is_o2(loop)) return fast_and_rest(loop, adam_o2);
  if (is_o1(loop)) return fast_and_rest(loop, adam_o1);
#endif
  return any_types(loop);
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
