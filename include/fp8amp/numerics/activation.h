// exp, sigmoid, GELU, SiLU and their derivatives: IEEE FP32 additions, multiplications, divisions
// and integer operations in one order, so that every machine gives the same bits. Each is a
// template over float and vectors of floats (GCC's vector extensions): one text is the definition
// and the CPU's vector loop.
//
//   function       definition                    largest error, over all floats
//   exp            e^x                           1 unit in the last place (of 2^-149 where the
//                                                result is subnormal)
//   silu           x sigmoid(x)                  4 units in the last place, or 2^-142
//   gelu (erf)     x Phi(x)                      2^-21 max(|x| / 4, |result|)
//   gelu (tanh)    x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2; the same
//                  = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
//   derivatives                                  2^-21
//
// At -Inf the functions are NaN (Inf * 0), as torch's are; the derivatives have their limits.
//
// Sources: Hendrycks and Gimpel, arXiv 1606.08415 (GELU, both forms); Cody and Waite, "Software
// Manual for the Elementary Functions" (reduction of exp), with the polynomial of Cephes' expf.
#pragma once
#include <fp8amp/numerics/formats.h>

#include <bit>
#include <cstdint>
#include <utility>

namespace fp8amp {

// Phi(x), the normal distribution, or its approximation by tanh ("gelu_new").
enum class GeluForm : std::uint8_t { kErf = 0, kTanh = 1 };

namespace numerics {

// The integers as wide as the lanes of F.
template <class F>
struct SignedLanes {
  using Type = decltype(std::declval<F>() > std::declval<F>());
};
template <>
struct SignedLanes<float> {
  using Type = std::int32_t;
};

template <class F>
FP8AMP_HD F absolute(F x) {
  using I = typename SignedLanes<F>::Type;
  return std::bit_cast<F>(std::bit_cast<I>(x) & 0x7fffffff);
}

// e^x = 2^n e^r, |r| <= ln(2) / 2. 2^n is applied in two factors, so that the result passes through
// the subnormal numbers to 0, and to Inf. NaN passes every comparison.
template <class F>
FP8AMP_HD F exp(F x) {
  using I = typename SignedLanes<F>::Type;
  constexpr float kLog2E = 0x1.715476p0f, kRound = 0x1.8p23f;
  constexpr float kLn2High = 0x1.63p-1f, kLn2Low = -0x1.bd0106p-13f;  // n * kLn2High is exact
  const F low = F{} - 104.0f, high = F{} + 89.0f;                     // beyond: 0 and Inf
  x = x < low ? low : x;
  x = x > high ? high : x;
  const F t = x * kLog2E + kRound, n = t - kRound;
  const F r = (x - n * kLn2High) - n * kLn2Low;
  F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const F y = (p * (r * r) + r) + 1.0f;
  const I exponent = std::bit_cast<I>(t) - std::bit_cast<std::int32_t>(kRound);
  const I half = exponent >> 1;
  return y * std::bit_cast<F>((half + 127) << 23) * std::bit_cast<F>((exponent - half + 127) << 23);
}

// A distribution function at |x| and at -|x|, each to its own last places, and its derivative.
template <class F>
struct Tails {
  F upper, lower, density;
};

// Of the logistic distribution, at z >= 0: upper = sigmoid(z).
template <class F>
FP8AMP_HD Tails<F> logistic_tails(F z) {
  const F e = exp(F{} - z), upper = 1.0f / (e + 1.0f), lower = e * upper;
  return {upper, lower, upper * lower};
}

// Of the normal distribution, at a >= 0. Phi(-a) exp(a^2 / 2) is a polynomial in 1 / (1 + 0.35 a),
// fitted to 6e-8 of it on [0, 14.5], where Phi(-a) has reached the end of FP32.
template <class F>
FP8AMP_HD Tails<F> normal_tails(F a) {
  const F e = exp(a * a * -0.5f), t = 1.0f / (a * 0.35f + 1.0f);
  F p = t * -0x1.ddb9a4p-6f + 0x1.26fa0cp-3f;
  p = p * t - 0x1.05fb06p-2f;
  p = p * t + 0x1.464a38p-3f;
  p = p * t - 0x1.7c5406p-6f;
  p = p * t + 0x1.b05844p-4f;
  p = p * t + 0x1.eac99ep-4f;
  p = p * t + 0x1.1e70c6p-3f;
  p = p * t + 0x1.1df1c6p-3f;
  const F lower = e * (p * t);
  return {1.0f - lower, lower, e * 0x1.988454p-2f};
}

// All four functions are x * c(x), c a distribution function: c(x) is `upper` on the right and
// `lower` on the left, and the derivative is c(x) + x c'(x). `a` is |x|, not beyond a point where
// the tails are 0, so that their products with Inf are 0.
template <class F>
struct Gate {
  F a;
  Tails<F> c;
};
template <class F>
FP8AMP_HD F gated(F x, const Gate<F>& g) {
  return x * (x < 0.0f ? g.c.lower : g.c.upper);
}
template <class F>
FP8AMP_HD F gated_derivative(F x, const Gate<F>& g) {
  const F slope = g.a * g.c.density;
  return x < 0.0f ? g.c.lower - slope : g.c.upper + slope;
}
template <class F>
FP8AMP_HD F limited_magnitude(F x, float limit) {
  const F a = absolute(x), most = F{} + limit;
  return a > most ? most : a;
}

template <class F>
FP8AMP_HD Gate<F> silu_gate(F x) {
  const F a = limited_magnitude(x, 128.0f);
  return {a, logistic_tails(a)};
}
template <class F>
FP8AMP_HD Gate<F> gelu_gate(F x, GeluForm form) {
  constexpr float kLinear = 0x1.988454p0f, kCubic = 0x1.2444f2p-4f;  // 2 sqrt(2/pi), * 0.044715
  const F a = limited_magnitude(x, 16.0f);
  if (form == GeluForm::kErf) return {a, normal_tails(a)};
  const F square = a * a;
  Tails<F> c = logistic_tails(a * (square * kCubic + kLinear));
  c.density = c.density * (square * (3.0f * kCubic) + kLinear);  // times dz/dx
  return {a, c};
}

template <class F>
FP8AMP_HD F silu(F x) {
  return gated(x, silu_gate(x));
}
template <class F>
FP8AMP_HD F silu_derivative(F x) {
  return gated_derivative(x, silu_gate(x));
}
template <class F>
FP8AMP_HD F gelu(F x, GeluForm form) {
  return gated(x, gelu_gate(x, form));
}
template <class F>
FP8AMP_HD F gelu_derivative(F x, GeluForm form) {
  return gated_derivative(x, gelu_gate(x, form));
}

// SwiGLU: silu(gate) * up; its gradients are those below, and dy * silu(gate) for up.
template <class F>
FP8AMP_HD F swiglu(F gate, F up) {
  return silu(gate) * up;
}
template <class F>
FP8AMP_HD F swiglu_gate_gradient(F dy, F gate, F up) {
  return dy * up * silu_derivative(gate);
}

// ---- what |result| does not exceed, in a few operations; Inf or NaN wherever the result may be
// NaN
//
// -0.17 < gelu(x) <= max(x, 0), -0.13 < gelu'(x) < 1.13, |silu(x)| <= |x|, -0.1 < silu'(x) < 1.1.
template <class F>
FP8AMP_HD F gelu_bound(F x) {
  return x < 0.25f ? x * 0.0f + 0.25f : x;
}
template <class F>
FP8AMP_HD F gelu_gradient_bound(F dy, F x) {
  return absolute(dy) * 1.25f + x * 0.0f;
}
template <class F>
FP8AMP_HD F swiglu_bound(F gate, F up) {
  return absolute(gate * up);
}
template <class F>
FP8AMP_HD F swiglu_gate_gradient_bound(F dy, F gate, F up) {
  return absolute(dy * up) * 1.25f + gate * 0.0f;
}

}  // namespace numerics
}  // namespace fp8amp
