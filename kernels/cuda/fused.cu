// Launchers of the norms and activations with a cast, and of the norms' backward.
#include "kernels/cuda/fused.cuh"

#include "kernels/cuda/cast_plan.cuh"
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
           p.aligned};
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

namespace {

dim3 grid_of_threads(std::int64_t threads) {
  return dim3(static_cast<unsigned>(ceil_div(threads, kThreads)));
}

// 32 neighbouring rows of sums[n, cols] become one, until one is left: in `total`. The sums between
// stand behind the first.
void add_rows(float* sums, std::int64_t n, std::int64_t cols, float* total, cudaStream_t stream) {
  while (n > 1) {
    const std::int64_t next = ceil_div(n, numerics::kRowsOfSum);
    float* const to = next == 1 ? total : sums + n * cols;
    FP8AMP_LAUNCH(add_rows_kernel, grid_of_threads(next * cols), dim3(kThreads), 0, stream, sums, n,
                  cols, to);
    sums = to;
    n = next;
  }
}

}  // namespace

void norm_backward(const NormBackwardArgs& a) {
  const auto stream = static_cast<cudaStream_t>(a.stream);
  const std::int64_t sums = ceil_div(a.rows, numerics::kRowsOfSum);
  if (sums == 0) {
    const auto bytes = static_cast<std::size_t>(a.cols) * sizeof(float);
    FP8AMP_CUDA_CHECK(cudaMemsetAsync(a.dgamma, 0, bytes, stream));
    if (a.dbeta) FP8AMP_CUDA_CHECK(cudaMemsetAsync(a.dbeta, 0, bytes, stream));
    return;
  }
  // with one row of sums it is the result itself; else room for the sums of the sums too
  const std::int64_t room = sums == 1 ? 0 : (2 * sums + 64) / kVector * kVector * a.cols;
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
