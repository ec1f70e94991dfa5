// LayerNorm and RMSNorm, one element and the order of the sums. IEEE FP32; templates over float and
// vectors of floats, as in activation.h.
//
//   mean = sum(x) / n                                              RMSNorm: 0
//   rstd = 1 / sqrt(sum((x - mean)^2) / n + eps)
//   y    = (x - mean) * rstd * gamma + beta                        RMSNorm: without beta
//   with h = (x - mean) * rstd, g = dy * gamma, a = sum(g) / n (RMSNorm: 0), b = sum(g * h) / n:
//   dx   = ((g - a) - h * b) * rstd;  dgamma = sum of dy * h, dbeta = sum of dy over the rows
//
// The deviations are taken from the mean, in a second pass over the row: a large mean does not
// cancel.
//
// Sums over a row: element i is added to partial sum i % 512, from 0 on, in ascending order. The
// 512 are a grid [32][16], as a warp of GPU threads with 16 neighbouring elements each holds them:
// partial sums j and j + 8 of a row of it are added, then j and j + 4, j + 2, j + 1; then the 32
// rows in the same way, 16 apart first.
// Sums over rows (dgamma, dbeta): column_sums.h.
//
// Sources: Ba et al., arXiv 1607.06450 (LayerNorm); Zhang and Sennrich, arXiv 1910.07467 (RMSNorm).
#pragma once
#include <fp8amp/numerics/column_sums.h>
#include <fp8amp/numerics/formats.h>

#include <cmath>
#include <cstdint>

namespace fp8amp::numerics {

inline constexpr int kRowSums = 512, kRowSumsOfThread = 16;

FP8AMP_HD float inverse_deviation(float sum_of_squares, std::int64_t n, float eps) {
  return 1.0f / std::sqrt(sum_of_squares / float(n) + eps);
}

template <class F>
FP8AMP_HD F square_of_deviation(F x, float mean) {
  const F d = x - mean;
  return d * d;
}

template <class F>
FP8AMP_HD F normalize(F x, float mean, float rstd) {
  return (x - mean) * rstd;
}

// g of a row, its means a and b, and h.
template <class F>
FP8AMP_HD F normalize_gradient(F g, F h, float a, float b, float rstd) {
  return ((g - a) - h * b) * rstd;
}

}  // namespace fp8amp::numerics
