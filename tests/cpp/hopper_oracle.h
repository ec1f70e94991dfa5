// A dot product in integers as an H100 adds it: the published model, written without the library's
// numerics. value = significand * 2^(exponent - fraction bits).
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace fp8amp::test {

struct Fp8Parts {
  int significand, exponent, fraction;
};
inline Fp8Parts parts(std::uint8_t code, int fraction) {
  const int bias = fraction == 3 ? 7 : 15;
  const int e = (code & 0x7f) >> fraction, m = code & ((1 << fraction) - 1);
  const int significand = e ? m | 1 << fraction : m;
  return {code & 0x80 ? -significand : significand, (e ? e : 1) - bias, fraction};
}

inline std::int64_t shift(std::int64_t v, int by) {  // v * 2^by, truncated toward zero
  if (by >= 0) return v * (std::int64_t{1} << by);
  if (by < -62) return 0;
  return v < 0 ? -(-v >> -by) : v >> -by;
}

struct HopperDot {
  float sum;
  double bound;  // of its error, without the FP32 additions
};

inline HopperDot hopper_dot(const std::vector<Fp8Parts>& a, const std::vector<Fp8Parts>& b,
                            bool fast) {
  constexpr int kBits = 13, kNone = -100000;
  const int k = static_cast<int>(a.size());
  float total = 0, c = 0;
  double bound = 0;
  for (int k0 = 0; k0 < k; k0 += 32) {
    if (!fast && k0 % 128 == 0) total += c, c = 0;
    int top = c != 0 ? std::ilogb(c) : kNone;
    const int end = std::min(k, k0 + 32);
    const auto at = [](int i) { return static_cast<std::size_t>(i); };
    for (int i = k0; i < end; ++i)
      if (a[at(i)].significand * b[at(i)].significand != 0)
        top = std::max(top, a[at(i)].exponent + b[at(i)].exponent);
    if (top == kNone) continue;
    auto sum = static_cast<std::int64_t>(std::ldexp(c, kBits - top));
    for (int i = k0; i < end; ++i) {
      const Fp8Parts &x = a[at(i)], &y = b[at(i)];
      sum += shift(x.significand * y.significand,
                   x.exponent + y.exponent - x.fraction - y.fraction + kBits - top);
    }
    const int length = std::bit_width(static_cast<std::uint64_t>(sum < 0 ? -sum : sum));
    const int drop = std::max(0, length - (kBits + 1));
    c = std::ldexp(static_cast<float>(shift(shift(sum, -drop), drop)), top - kBits);
    bound += std::ldexp(33 * std::ldexp(1.0, top) + std::fabs(double(c)), -kBits);
  }
  return {total + c, bound};
}

}  // namespace fp8amp::test
