// Adam on the CPU: scales before the pass, the pass over all tensors, maxima after it. A compute
// weight is the cast of a piece of the new master that is still in the L1 cache.
#include "kernels/adam.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/adam_step.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/shared_maximum.h"
#include "kernels/cpu/tensor_blocks.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu {
namespace {

constexpr std::int64_t kGrain = 32;  // blocks a thread is woken for
constexpr std::int64_t kWeightPiece = 8 * kBlockElements;

struct TensorMaxima {
  SharedMaximum p, m, v;
};

AdamLoop make_loop(const AdamArgs& args, const AdamTensor& x, const AdamStep& step) {
  AdamLoop loop{};
  loop.p_type = x.p_type, loop.g_type = x.g_type, loop.m_type = x.m_type, loop.v_type = x.v_type;
  loop.scalars = step.scalars;
  loop.p_rounding = args.p_rounding, loop.m_rounding = args.m_rounding,
  loop.v_rounding = args.v_rounding;
  loop.key = numerics::random_key(args.seed, step.t, x.id, kAdamStream);
  loop.v_key = numerics::random_key(args.seed, step.t, x.id, kSecondMomentStream);
  return loop;
}

void point_at(AdamLoop& loop, const AdamTensor& x, std::int64_t first, std::int64_t n) {
  loop.p = element_pointer(x.p, x.p_type, first);
  loop.g = element_pointer(x.g, x.g_type, first);
  loop.m = element_pointer(x.m, x.m_type, first);
  loop.v = element_pointer(x.v, x.v_type, first);
  loop.n = n;
  loop.first = static_cast<std::uint64_t>(first);
}

void write_compute_weight(const AdamTensor& x, const AdamStep& step, std::int64_t first,
                          std::int64_t n) {
  CastLoop cast{};
  cast.x = element_pointer(x.p, x.p_type, first);
  cast.x_type = x.p_type;
  cast.has_x_scale_inv = is_scaled(x.p_type, x.p_scale_inv);
  cast.x_scale_inv = step.p_scale_inv;
  cast.y = element_pointer(x.w, x.w_type, first);
  cast.format = x.w_type;
  cast.scale = step.w.scale;
  cast.n = n;
  cast.rounding = Rounding::kNearest;
  cast.overflow = Overflow::kSaturate;
  loops().cast(cast);
}

}  // namespace

void grad_amax(const AdamArgs& args, float* found_inf) {
  std::vector<SharedMaximum> maxima(args.tensors.size());
  for_each_run(args.tensors, kGrain, [&](std::size_t i, std::int64_t first, std::int64_t n) {
    const AdamTensor& x = args.tensors[i];
    maxima[i].raise(loops().amax(element_pointer(x.g, x.g_type, first), x.g_type, n));
  });
  bool finite = true;
  for (std::size_t i = 0; i < maxima.size(); ++i) {
    const AdamTensor& x = args.tensors[i];
    x.amax[3] = gradient_amax(numerics::bits_float(maxima[i].get()), x.g_scale_inv);
    finite = finite && gradient_is_finite(x.amax[3], args.grad_scale);
  }
  *found_inf = finite ? 0.0f : 1.0f;
}

void adam(const AdamArgs& args) {
  if (args.found_inf && *args.found_inf != 0.0f) return;
  const auto finite = [&](const AdamTensor& x) {
    return gradient_is_finite(x.amax[3], args.grad_scale);
  };
  if (!std::all_of(args.tensors.begin(), args.tensors.end(), finite)) return;
  const float grad_scale = args.grad_scale ? *args.grad_scale : 1.0f;
  numerics::AdamHyperparameters hyper = args.hyper;
  if (args.lr) hyper.lr = *args.lr;
  std::vector<AdamStep> steps;
  steps.reserve(args.tensors.size());
  for (const AdamTensor& x : args.tensors) steps.push_back(prepare_adam_step(x, hyper, grad_scale));
  std::vector<TensorMaxima> maxima(args.tensors.size());
  for_each_run(args.tensors, kGrain, [&](std::size_t i, std::int64_t first, std::int64_t n) {
    const AdamTensor& x = args.tensors[i];
    AdamLoop loop = make_loop(args, x, steps[i]);
    const std::int64_t piece = x.w ? kWeightPiece : n;
    for (std::int64_t begin = first, end = first + n; begin < end; begin += piece) {
      point_at(loop, x, begin, std::min(piece, end - begin));
      const AdamMaxima max = loops().adam(loop);
      maxima[i].p.raise(max.p);
      maxima[i].m.raise(max.m);
      maxima[i].v.raise(max.v);
      if (x.w) write_compute_weight(x, steps[i], begin, loop.n);
    }
  });
  for (std::size_t i = 0; i < steps.size(); ++i)
    finish_adam_step(args.tensors[i], steps[i], maxima[i].p.get(), maxima[i].m.get(),
                     maxima[i].v.get());
}

}  // namespace fp8amp::kernels::cpu
