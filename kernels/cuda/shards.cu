// Launcher of the sum of FP8 shards.
#include "kernels/cuda/shards.cuh"

#include <optional>

#include "kernels/cuda/launch.cuh"

namespace fp8amp::kernels::cuda {
namespace {

ShardsParams make_params(const SumShardsArgs& a, std::uint32_t* amax) {
  ShardsParams p{};
  bool aligned = aligned_to_16(a.y);
  for (const Shard& shard : a.shards) {
    aligned = aligned && aligned_to_16(shard.x);
    p.shards[p.count++] = shard;
  }
  p.range = {nullptr, nullptr, a.n, aligned ? a.n / kVector : 0};
  p.factor = a.factor;
  p.y = a.y;
  p.choice.source = a.scale ? ScaleSource::kGiven : ScaleSource::kCurrent;
  p.choice.scale = a.scale;
  p.choice.amax = a.bound ? a.bound : reinterpret_cast<const float*>(amax);
  p.choice.format_max = format_max(a.format);
  p.choice.rounding = a.scale_rounding;
  p.scale_inv = a.scale_inv;
  p.amax = amax;
  p.found_inf = a.found_inf;
  return p;
}

}  // namespace

void sum_shards(const SumShardsArgs& a) {
  const auto stream = static_cast<cudaStream_t>(a.stream);
  const bool measured = !a.scale && !a.bound;
  std::optional<Scratch>
      scratch;  // of the maximum, where the scale needs it and the caller does not
  auto* amax = reinterpret_cast<std::uint32_t*>(a.amax);
  if (measured && !amax)
    amax = static_cast<std::uint32_t*>(scratch.emplace(stream, sizeof *amax).data());
  const ShardsParams p = make_params(a, amax);
  if (amax) FP8AMP_CUDA_CHECK(cudaMemsetAsync(amax, 0, sizeof *amax, stream));
  const dim3 grid = grid_for(a.n);
  with_float8_type(a.x_type, [&](auto x) {
    if (measured) FP8AMP_LAUNCH(measure_shards_kernel<x()>, grid, dim3(kThreads), 0, stream, p);
    with_float8(a.format, [&](auto format) {
      FP8AMP_LAUNCH((sum_shards_kernel<x(), decltype(format)>), grid, dim3(kThreads), 0, stream, p,
                    measured);
    });
  });
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fp8amp::kernels::cuda
