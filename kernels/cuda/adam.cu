// Launchers of Adam: batches of tensors, a block for every chunk of every tensor.
#include "kernels/cuda/adam.cuh"

#include "kernels/cuda/launch.cuh"

namespace fp8amp::kernels::cuda {
namespace {

AdamBatch make_batch(const AdamArgs& args) {
  AdamBatch b{};
  b.hyper = args.hyper;
  b.p_rounding = args.p_rounding, b.m_rounding = args.m_rounding, b.v_rounding = args.v_rounding;
  b.seed = args.seed;
  b.grad_scale = args.grad_scale;
  b.found_inf = args.found_inf;
  return b;
}

// Calls launch(batch, blocks) for the tensors, kMaxAdamTensors at a time.
template <class Launch>
void for_each_batch(const AdamArgs& args, const Launch& launch) {
  AdamBatch b = make_batch(args);
  for (std::size_t first = 0; first < args.tensors.size(); first += kMaxAdamTensors) {
    b.count = static_cast<int>(std::min<std::size_t>(kMaxAdamTensors, args.tensors.size() - first));
    std::int64_t blocks = 0;
    for (int t = 0; t < b.count; ++t) {
      const AdamTensor& x = args.tensors[first + static_cast<std::size_t>(t)];
      b.tensors[t] = x;
      b.aligned[t] = aligned_to_16(x.p, x.g, x.m, x.v);
      b.first_block[t] = blocks;
      blocks += (x.n + kAdamChunk - 1) / kAdamChunk;
    }
    b.first_block[b.count] = blocks;
    launch(b, dim3(static_cast<unsigned>(blocks)));
  }
}

}  // namespace

void grad_amax(const AdamArgs& args, float* found_inf) {
  const auto stream = static_cast<cudaStream_t>(args.stream);
  FP8AMP_CUDA_CHECK(cudaMemsetAsync(found_inf, 0, sizeof *found_inf, stream));
  for_each_batch(args, [&](const AdamBatch& b, dim3 blocks) {
    FP8AMP_LAUNCH(zero_grad_amax_kernel, dim3(1), dim3(kMaxAdamTensors), 0, stream, b);
    if (blocks.x) FP8AMP_LAUNCH(grad_amax_kernel, blocks, dim3(kThreads), 0, stream, b, found_inf);
  });
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

void adam(const AdamArgs& args) {
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const Scratch scratch(stream, kMaxAdamTensors * sizeof(AdamWork) + sizeof(std::uint32_t));
  auto* const work = static_cast<AdamWork*>(scratch.data());
  auto* const skip = reinterpret_cast<std::uint32_t*>(work + kMaxAdamTensors);
  FP8AMP_CUDA_CHECK(cudaMemsetAsync(skip, 0, sizeof *skip, stream));
  for_each_batch(args, [&](AdamBatch b, dim3) {
    b.skip = skip;
    FP8AMP_LAUNCH(check_gradients_kernel, dim3(1), dim3(kMaxAdamTensors), 0, stream, b);
  });
  for_each_batch(args, [&](AdamBatch b, dim3 blocks) {
    b.work = work, b.skip = skip;
    FP8AMP_LAUNCH(prepare_adam_kernel, dim3(1), dim3(kMaxAdamTensors), 0, stream, b);
    if (blocks.x) FP8AMP_LAUNCH(adam_kernel, blocks, dim3(kThreads), 0, stream, b);
    FP8AMP_LAUNCH(finish_adam_kernel, dim3(1), dim3(kMaxAdamTensors), 0, stream, b);
  });
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fp8amp::kernels::cuda
