// Sum of FP8 shards on the CPU: a piece of the sum stays in the L1 cache while the shards stream
// by.
#include "kernels/shards.h"

#include <fp8amp/numerics/scale.h>
#include <fp8amp/parallel.h>

#include <algorithm>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/shared_maximum.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu {
namespace {

using namespace numerics;

constexpr std::int64_t kPiece = 2048;
constexpr std::int64_t kGrain = 8;  // pieces worth a thread

// body(sum, first, n): the sums of the elements [first, first + n), without the factor.
template <class Body>
void for_each_piece(const SumShardsArgs& a, const Body& body) {
  parallel_for(0, (a.n + kPiece - 1) / kPiece, kGrain, [&](std::int64_t from, std::int64_t to) {
    alignas(64) float sum[kPiece], next[kPiece];
    for (; from < to; ++from) {
      const std::int64_t first = from * kPiece, n = std::min(kPiece, a.n - first);
      const auto load = [&](const Shard& shard, float* y) {
        loops().dequantize({element_pointer(shard.x, a.x_type, first), a.x_type, true,
                            *shard.scale_inv, y, DType::kFloat32, n});
      };
      load(a.shards[0], sum);
      for (const Shard& shard : a.shards.subspan(1)) {
        load(shard, next);
        for (std::int64_t i = 0; i < n; ++i) sum[i] += next[i];
      }
      body(sum, first, n);
    }
  });
}

float choose_scale(const SumShardsArgs& a) {
  if (a.scale) return *a.scale;
  float amax = 0.0f;
  if (a.bound) {
    amax = *a.bound;
  } else {
    SharedMaximum max;
    for_each_piece(a, [&](const float* sum, std::int64_t, std::int64_t n) {
      max.raise(loops().amax(sum, DType::kFloat32, n));
    });
    amax = bits_float(max.get()) * a.factor;  // the product is monotonic
  }
  return compute_scale(amax, format_max(a.format), a.scale_rounding);
}

}  // namespace

void sum_shards(const SumShardsArgs& a) {
  const float scale = choose_scale(a);
  SharedMaximum max;
  for_each_piece(a, [&](const float* sum, std::int64_t first, std::int64_t n) {
    max.raise(
        loops().cast({sum, DType::kFloat32, true, a.factor, element_pointer(a.y, a.format, first),
                      a.format, scale, n, Rounding::kNearest, Overflow::kNaN, 0, 0}));
  });
  *a.scale_inv = inverse_scale(scale);
  if (a.amax) *a.amax = bits_float(max.get());
  if (a.found_inf && max.get() >= kInfBits) *a.found_inf = 1.0f;
}

}  // namespace fp8amp::kernels::cpu
