// Launchers of Adam: a block for every chunk of every tensor, and one for an empty tensor.
#include "kernels/cuda/adam.cuh"

#include "kernels/cuda/launch.cuh"

namespace fp8amp::kernels::cuda {
namespace {

// Calls body(first, count) for the tensors, `capacity` at a time.
template <class Body>
void for_each_batch(std::size_t tensors, int capacity, const Body& body) {
  const auto step = static_cast<std::size_t>(capacity);
  for (std::size_t first = 0; first < tensors; first += step)
    body(first, static_cast<int>(std::min(step, tensors - first)));
}

// Numbers the blocks of `count` tensors in first_block[count + 1]; all of them as a grid.
dim3 number_blocks(const AdamTensor* tensors, int count, std::int64_t* first_block) {
  std::int64_t blocks = 0;
  for (int t = 0; t < count; ++t) {
    first_block[t] = blocks;
    blocks += std::max<std::int64_t>(1, (tensors[t].n + kAdamChunk - 1) / kAdamChunk);
  }
  first_block[count] = blocks;
  return dim3(static_cast<unsigned>(blocks));
}

void launch_prepare(const AdamArgs& args, AdamWork* work, std::uint32_t* skip,
                    cudaStream_t stream) {
  AdamBatch b{};
  b.hyper = args.hyper;
  b.lr = args.lr;
  b.seed = args.seed;
  b.grad_scale = args.grad_scale;
  b.found_inf = args.found_inf;
  b.skip = skip;
  for_each_batch(args.tensors.size(), kMaxAdamTensors, [&](std::size_t first, int count) {
    std::copy_n(args.tensors.data() + first, count, b.tensors);
    b.count = count, b.first = first == 0, b.work = work + first;
    FP8AMP_LAUNCH(prepare_adam_kernel, dim3(1), dim3(kMaxAdamTensors), 0, stream, b);
  });
}

void launch_pass(const AdamArgs& args, AdamWork* work, const std::uint32_t* skip,
                 cudaStream_t stream) {
  AdamPass b{};
  b.p_rounding = args.p_rounding, b.m_rounding = args.m_rounding, b.v_rounding = args.v_rounding;
  b.skip = skip;
  for_each_batch(args.tensors.size(), kMaxPassTensors, [&](std::size_t first, int count) {
    b.count = count, b.work = work + first;
    const dim3 grid = number_blocks(args.tensors.data() + first, count, b.first_block);
    FP8AMP_LAUNCH(adam_kernel, grid, dim3(kThreads), 0, stream, b);
  });
}

}  // namespace

void grad_amax(const AdamArgs& args, float* found_inf) {
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const std::size_t tensors = args.tensors.size(),
                    batches = (tensors + kMaxGradTensors - 1) / kMaxGradTensors;
  if (tensors == 0) {
    FP8AMP_CUDA_CHECK(cudaMemsetAsync(found_inf, 0, sizeof *found_inf, stream));
    return;
  }
  const std::size_t bytes = (tensors + batches) * sizeof(std::uint32_t);
  const Scratch scratch(stream, bytes);
  auto* const maxima = static_cast<std::uint32_t*>(scratch.data());
  FP8AMP_CUDA_CHECK(cudaMemsetAsync(maxima, 0, bytes, stream));
  GradBatch b{};
  b.grad_scale = args.grad_scale, b.found_inf = found_inf;
  for_each_batch(tensors, kMaxGradTensors, [&](std::size_t first, int count) {
    for (int t = 0; t < count; ++t) {
      const AdamTensor& x = args.tensors[first + static_cast<std::size_t>(t)];
      b.tensors[t] = {x.g, x.g_scale_inv, x.amax, x.n, x.g_type, aligned_to_16(x.g)};
    }
    b.count = count, b.first = first == 0, b.maxima = maxima + first;
    b.blocks_done = maxima + tensors + first / kMaxGradTensors;
    const dim3 grid = number_blocks(args.tensors.data() + first, count, b.first_block);
    FP8AMP_LAUNCH(grad_amax_kernel, grid, dim3(kThreads), 0, stream, b);
  });
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

void adam(const AdamArgs& args) {
  if (args.tensors.empty()) return;
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const std::size_t tensors = args.tensors.size();
  const Scratch scratch(stream, tensors * sizeof(AdamWork) + sizeof(std::uint32_t));
  auto* const work = static_cast<AdamWork*>(scratch.data());
  auto* const skip = reinterpret_cast<std::uint32_t*>(work + tensors);
  launch_prepare(args, work, skip, stream);
  launch_pass(args, work, skip, stream);
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fp8amp::kernels::cuda
