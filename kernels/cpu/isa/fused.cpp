// Rows of norms and activations in FP32: the templates of numerics/ on vectors, and on floats for
// what is left of a row.
#include <fp8amp/numerics/activation.h>
#include <fp8amp/numerics/normalize.h>

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

// Neighbouring groups of 2 * kHalf numbers to groups of kHalf: the two halves of each added.
template <int kHalf>
inline void add_halves(float* x, int n) {
  for (int group = 0; group < n / (2 * kHalf); ++group)
    for (int i = 0; i < kHalf; ++i)
      x[group * kHalf + i] = x[2 * group * kHalf + i] + x[(2 * group + 1) * kHalf + i];
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
