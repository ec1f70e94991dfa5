// Rows of norms and activations in FP32: the templates of numerics/ on vectors, and on floats for
// what is left of a row.
#include <fp8amp/numerics/activation.h>
#include <fp8amp/numerics/normalize.h>

#include <type_traits>

#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/simd.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {
namespace {

using namespace numerics;

// body(F{}, i) for elements i, i + 1, ... of [0, n), as many as F has lanes.
template <class Body>
inline void for_lanes(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(F32{}, i);
  for (; i < n; ++i) body(0.0f, i);
}

// Of two vectors, seen as groups of 2 * kHalf numbers: the first or the second half of each group.
template <int kHalf, int kWhich, int... I>
inline F32 halves_of(F32 a, F32 b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I / kHalf * 2 * kHalf + I % kHalf + kWhich * kHalf)...);
}
// Neighbouring groups of 2 * kHalf numbers to groups of kHalf: the two halves of each added.
template <int kHalf>
inline void add_halves(float* x, int n) {
  int i = 0;
  if constexpr (kHalf < kLanes) {
    using Lanes = std::make_integer_sequence<int, kLanes>;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      const F32 a = load<F32>(x + i), b = load<F32>(x + i + kLanes);
      store(x + i / 2, halves_of<kHalf, 0>(a, b, Lanes{}) + halves_of<kHalf, 1>(a, b, Lanes{}));
    }
  }
  for (; i < n; i += 2 * kHalf)
    for (int j = 0; j < kHalf; ++j) x[i / 2 + j] = x[i + j] + x[i + kHalf + j];
}

// Sums over a row in the order of numerics/normalize.h.
struct RowSum {
  alignas(64) float part[kRowSums] = {};

  float total() {
    static_assert(kRowSums == 512 && kRowSumsOfThread == 16);
    add_halves<8>(part, 512);
    add_halves<4>(part, 256);
    add_halves<2>(part, 128);
    add_halves<1>(part, 64);
    add_halves<16>(part, 32);
    add_halves<8>(part, 16);
    add_halves<4>(part, 8);
    add_halves<2>(part, 4);
    return part[0] + part[1];
  }
};
template <class F>
inline void add(float* part, F x) {
  store(part, load<F>(part) + x);
}
// body(F{}, i, j): elements i, ... of the row, whose partial sums are j, ...
template <class Body>
inline void for_sums(std::int64_t n, const Body& body) {
  for (std::int64_t first = 0; first < n; first += kRowSums) {
    const std::int64_t count = n - first < kRowSums ? n - first : kRowSums;
    for_lanes(count, [&](auto f, std::int64_t j) { body(f, first + j, j); });
  }
}

void gelu_row(const FusedRow& l) {
  const auto run = [&](auto form) {
    for_lanes(l.n, [&]<class F>(F, std::int64_t i) {
      store(l.y + i, gelu(load<F>(l.x + i), decltype(form)::value));
    });
  };
  l.form == GeluForm::kErf ? run(std::integral_constant<GeluForm, GeluForm::kErf>{})
                           : run(std::integral_constant<GeluForm, GeluForm::kTanh>{});
}

void gelu_backward_row(const FusedRow& l) {
  const auto run = [&](auto form) {
    for_lanes(l.n, [&]<class F>(F, std::int64_t i) {
      store(l.y + i, load<F>(l.dy + i) * gelu_derivative(load<F>(l.x + i), decltype(form)::value));
    });
  };
  l.form == GeluForm::kErf ? run(std::integral_constant<GeluForm, GeluForm::kErf>{})
                           : run(std::integral_constant<GeluForm, GeluForm::kTanh>{});
}

// x: gate, up
void swiglu_row(const FusedRow& l) {
  const float* up = l.x + l.n;
  for_lanes(l.n, [&]<class F>(F, std::int64_t i) {
    store(l.y + i, swiglu(load<F>(l.x + i), load<F>(up + i)));
  });
}

// y: of gate, of up
void swiglu_backward_row(const FusedRow& l) {
  const float* up = l.x + l.n;
  for_lanes(l.n, [&]<class F>(F, std::int64_t i) {
    const F gate = load<F>(l.x + i), dy = load<F>(l.dy + i);
    store(l.y + i, swiglu_gate_gradient(dy, gate, load<F>(up + i)));
    store(l.y + l.n + i, dy * silu(gate));
  });
}

void norm_row(const FusedRow& l) {
  if (l.beta)
    for_lanes(l.n, [&]<class F>(F, std::int64_t i) {
      store(l.y + i, normalize(load<F>(l.x + i), l.mean, l.rstd) * load<F>(l.gamma + i) +
                         load<F>(l.beta + i));
    });
  else
    for_lanes(l.n, [&]<class F>(F, std::int64_t i) {
      store(l.y + i, normalize(load<F>(l.x + i), l.mean, l.rstd) * load<F>(l.gamma + i));
    });
}

// ---- the largest magnitude of a row's results
//
// An element's bound costs a few operations and its result dozens: where no bound of a piece of the
// row is above what was seen, its results are not computed.
constexpr std::int64_t kPiece = 128;

inline F32 raised(F32 most, F32 x) { return floats(max_bits(bits(most), magnitude(x))); }
inline float raised(float most, float x) {
  const float a = absolute(x);
  return float_bits(a) > float_bits(most) ? a : most;
}

// The bits of the largest |f(F{}, i)| of elements [first, last).
template <class Function>
inline std::uint32_t largest_magnitude(std::int64_t first, std::int64_t last,
                                       const Function& function) {
  F32 most{};
  float rest = 0.0f;
  for_lanes(last - first, [&]<class F>(F f, std::int64_t i) {
    if constexpr (std::is_same_v<F, float>)
      rest = raised(rest, function(f, first + i));
    else
      most = raised(most, function(f, first + i));
  });
  const std::uint32_t of_vectors = largest(bits(most)), of_rest = float_bits(rest);
  return of_vectors > of_rest ? of_vectors : of_rest;
}
template <class Bound, class Result>
std::uint32_t largest_result(std::int64_t n, std::uint32_t seen, const Bound& bound,
                             const Result& result) {
  for (std::int64_t first = 0; first < n; first += kPiece) {
    const std::int64_t last = n - first < kPiece ? n : first + kPiece;
    const std::uint32_t most = largest_magnitude(first, last, bound);
    if (most <= seen && most < kInfBits) continue;
    const std::uint32_t found = largest_magnitude(first, last, result);
    seen = found > seen ? found : seen;
  }
  return seen;
}

template <GeluForm kForm>
std::uint32_t gelu_amax(const FusedRow& l, std::uint32_t seen) {
  return largest_result(
      l.n, seen, [&]<class F>(F, std::int64_t i) { return gelu_bound(load<F>(l.x + i)); },
      [&]<class F>(F, std::int64_t i) { return gelu(load<F>(l.x + i), kForm); });
}

template <GeluForm kForm>
std::uint32_t gelu_backward_amax(const FusedRow& l, std::uint32_t seen) {
  return largest_result(
      l.n, seen,
      [&]<class F>(F, std::int64_t i) {
        return gelu_gradient_bound(load<F>(l.dy + i), load<F>(l.x + i));
      },
      [&]<class F>(F, std::int64_t i) {
        return load<F>(l.dy + i) * gelu_derivative(load<F>(l.x + i), kForm);
      });
}

std::uint32_t swiglu_amax(const FusedRow& l, std::uint32_t seen) {
  const float* up = l.x + l.n;
  return largest_result(
      l.n, seen,
      [&]<class F>(F, std::int64_t i) { return swiglu_bound(load<F>(l.x + i), load<F>(up + i)); },
      [&]<class F>(F, std::int64_t i) { return swiglu(load<F>(l.x + i), load<F>(up + i)); });
}

std::uint32_t swiglu_backward_amax(const FusedRow& l, std::uint32_t seen) {
  const float* up = l.x + l.n;
  seen = largest_result(
      l.n, seen,
      [&]<class F>(F, std::int64_t i) {
        return swiglu_gate_gradient_bound(load<F>(l.dy + i), load<F>(l.x + i), load<F>(up + i));
      },
      [&]<class F>(F, std::int64_t i) {
        return swiglu_gate_gradient(load<F>(l.dy + i), load<F>(l.x + i), load<F>(up + i));
      });
  return largest_result(
      l.n, seen,
      [&]<class F>(F, std::int64_t i) { return swiglu_bound(load<F>(l.x + i), load<F>(l.dy + i)); },
      [&]<class F>(F, std::int64_t i) { return load<F>(l.dy + i) * silu(load<F>(l.x + i)); });
}

}  // namespace

float row_sum(const float* x, std::int64_t n) {
  RowSum sum;
  for_sums(n,
           [&]<class F>(F, std::int64_t i, std::int64_t j) { add(sum.part + j, load<F>(x + i)); });
  return sum.total();
}

float row_deviation(const float* x, std::int64_t n, float mean) {
  RowSum sum;
  for_sums(n, [&]<class F>(F, std::int64_t i, std::int64_t j) {
    add(sum.part + j, square_of_deviation(load<F>(x + i), mean));
  });
  return sum.total();
}

void fused_row(const FusedRow& l) {
  switch (l.op) {
    case FusedOp::kNorm: return norm_row(l);
    case FusedOp::kGelu: return gelu_row(l);
    case FusedOp::kSwiGlu: return swiglu_row(l);
    case FusedOp::kGeluBackward: return gelu_backward_row(l);
    case FusedOp::kSwiGluBackward: return swiglu_backward_row(l);
  }
}

std::uint32_t fused_row_amax(const FusedRow& l, std::uint32_t seen) {
  const bool erf = l.form == GeluForm::kErf;
  switch (l.op) {
    case FusedOp::kNorm: break;
    case FusedOp::kGelu:
      return erf ? gelu_amax<GeluForm::kErf>(l, seen) : gelu_amax<GeluForm::kTanh>(l, seen);
    case FusedOp::kSwiGlu: return swiglu_amax(l, seen);
    case FusedOp::kGeluBackward:
      return erf ? gelu_backward_amax<GeluForm::kErf>(l, seen)
                 : gelu_backward_amax<GeluForm::kTanh>(l, seen);
    case FusedOp::kSwiGluBackward: return swiglu_backward_amax(l, seen);
  }
  norm_row(l);
  const std::uint32_t found = amax(l.y, DType::kFloat32, l.n);
  return found > seen ? found : seen;
}

void norm_backward_row(const NormBackwardRow& l) {
  RowSum of_g, of_gh;
  for_sums(l.n, [&]<class F>(F, std::int64_t i, std::int64_t j) {
    const F dy = load<F>(l.dy + i), h = normalize(load<F>(l.x + i), l.mean, l.rstd);
    const F g = dy * load<F>(l.gamma + i);
    if (l.centered) add(of_g.part + j, g);
    add(of_gh.part + j, g * h);
    add(l.dgamma + i, dy * h);
    if (l.dbeta) add(l.dbeta + i, dy);
  });
  const float a = l.centered ? of_g.total() / float(l.n) : 0.0f, b = of_gh.total() / float(l.n);
  for_lanes(l.n, [&]<class F>(F, std::int64_t i) {
    const F h = normalize(load<F>(l.x + i), l.mean, l.rstd);
    const F g = load<F>(l.dy + i) * load<F>(l.gamma + i);
    store(l.dx + i, normalize_gradient(g, h, a, b, l.rstd));
  });
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
