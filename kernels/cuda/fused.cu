// Launchers of the norms and activations with a cast, and of the norms' backward.
#include "kernels/cuda/fused.cuh"

#include "kernels/cuda/cast_plan.cuh"
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/norm_backward.cuh"

namespace fp8amp::kernels::cuda {
namespace {

template <class Body>
void with_op(FusedOp op, const Body& body) {
  switch (op) {
    case FusedOp::kNorm: return body(std::integral_constant<FusedOp, FusedOp::kNorm>{});
    case FusedOp::kGelu: return body(std::integral_constant<FusedOp, FusedOp::kGelu>{});
    case FusedOp::kSwiGlu: return body(std::integral_constant<FusedOp, FusedOp::kSwiGlu>{});
    case FusedOp::kGeluBackward:
      return body(std::integral_constant<FusedOp, FusedOp::kGeluBackward>{});
    case FusedOp::kSwiGluBackward:
      return body(std::integral_constant<FusedOp, FusedOp::kSwiGluBackward>{});
  }
}

dim3 grid_of_rows(std::int64_t rows) {
  const std::int64_t most = 8 * std::int64_t(device_facts().num_processors);
  return dim3(static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(rows, kWarps), 1, most)));
}

FusedParams make_params(const FusedArgs& a, const CastPlan& plan) {
  const QuantizeArgs& c = a.cast;
  FusedParams p{};
  p.form = a.form;
  p.x = a.x;
  p.dy = a.dy;
  p.gamma = a.gamma;
  p.beta = a.beta;
  p.mean = a.mean;
  p.rstd = a.rstd;
  p.eps = a.eps;
  p.format = c.format;
  const std::int64_t width = a.op == FusedOp::kSwiGluBackward ? 2 * kVector : kVector;
  p.aligned = aligned_to_16(a.x, a.dy, a.gamma, a.beta, c.y) && c.cols % width == 0;
  p.out = {plan.params(),
           c.transposed,
           c.rows,
           c.cols,
           aligned_to_16(c.transposed) && c.rows % kVector == 0,
           p.aligned,
           nullptr};
  p.out.cast.in.n = c.n;
  return p;
}

}  // namespace

void fused_quantize(const FusedArgs& a) {
  const CastPlan plan(a.cast);
  FusedParams p = make_params(a, plan);
  const dim3 rows = grid_of_rows(p.out.rows);
  const dim3 tiles = grid_of(ceil_div(p.out.rows, kTile) * ceil_div(p.out.cols, kTile));
  plan.begin();
  with_plain_type(a.x_type, [&](auto x) {
    with_op(a.op, [&](auto op) {
      p.measure = true;
      if (plan.measured || (op() == FusedOp::kNorm && p.out.transposed))
        FP8AMP_LAUNCH((fused_quantize_kernel<x(), op()>), rows, dim3(kThreads), 0, plan.stream, p);
      p.measure = false;
      if (p.out.transposed)
        FP8AMP_LAUNCH((fused_transpose_kernel<x(), op()>), tiles, dim3(kThreads), 0, plan.stream,
                      p);
      else
        FP8AMP_LAUNCH((fused_quantize_kernel<x(), op()>), rows, dim3(kThreads), 0, plan.stream, p);
    });
  });
  plan.end();
}

void norm_backward(const NormBackwardArgs& a) {
  const auto stream = static_cast<cudaStream_t>(a.stream);
  const std::int64_t sums = numerics::sums_of_rows(a.rows);
  if (sums == 0) {
    add_rows(nullptr, 0, a.cols, a.dgamma, stream);
    if (a.dbeta) add_rows(nullptr, 0, a.cols, a.dbeta, stream);
    return;
  }
  const std::int64_t room = room_for_sums(a.rows, a.cols);
  const Scratch scratch(stream, static_cast<std::size_t>(2 * room) * sizeof(float));
  auto* const first = static_cast<float*>(scratch.data());
  NormBackwardParams p{a, false, room ? first : a.dgamma, room ? first + room : a.dbeta};
  if (!a.dbeta) p.beta_sums = nullptr;
  p.aligned =
      aligned_to_16(a.dy, a.x, a.gamma, a.dx, p.gamma_sums, p.beta_sums) && a.cols % kVector == 0;
  with_plain_type(a.x_type, [&](auto x) {
    FP8AMP_LAUNCH((norm_backward_kernel<x()>), grid_of_rows(a.rows), dim3(kThreads), 0, stream, p);
    FP8AMP_LAUNCH((norm_columns_kernel<x()>), grid_of_threads(sums * ceil_div(a.cols, kVector)),
                  dim3(kThreads), 0, stream, p);
  });
  add_rows(p.gamma_sums, sums, a.cols, a.dgamma, stream);
  if (a.dbeta) add_rows(p.beta_sums, sums, a.cols, a.dbeta, stream);
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fp8amp::kernels::cuda
