// Launchers of norm and clipping.
#include "kernels/cuda/norm.cuh"

#include "kernels/cuda/launch.cuh"

namespace fp8amp::kernels::cuda {
namespace {

// Calls launch(batch) for the tensors, kMaxNormTensors at a time; `size` tells the chunks or blocks
// of one.
template <class Size, class Launch>
void for_each_batch(std::span<const NormTensor> tensors, const Size& size, const Launch& launch) {
  for (std::size_t first = 0; first < tensors.size(); first += kMaxNormTensors) {
    NormBatch b{};
    b.count = static_cast<int>(std::min<std::size_t>(kMaxNormTensors, tensors.size() - first));
    for (int t = 0; t < b.count; ++t) {
      b.tensors[t] = tensors[first + static_cast<std::size_t>(t)];
      b.first[t + 1] = b.first[t] + size(b.tensors[t]);
    }
    launch(b);
  }
}

dim3 blocks(std::int64_t n) { return dim3(static_cast<unsigned>(n)); }

}  // namespace

void norm(const NormArgs& args) {
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const auto chunks = [](const NormTensor& x) { return ceil_div(x.n, kNormChunk); };
  std::int64_t total = 0;
  for (const NormTensor& x : args.tensors) total += chunks(x);
  // the sums of the chunks, then those of their chunks, and so on, one behind the other
  const std::int64_t room = total + ceil_div(total, kNormChunk) + 64;
  const Scratch scratch(stream, static_cast<std::size_t>(room) * sizeof(double));
  auto* sums = static_cast<double*>(scratch.data());
  std::int64_t done = 0;
  for_each_batch(args.tensors, chunks, [&](const NormBatch& b) {
    const std::int64_t n = b.first[b.count];
    if (n == 0) return;
    FP8AMP_LAUNCH(sum_of_squares_kernel, blocks(ceil_div(n, kChunksPerBlock)), dim3(kThreads), 0,
                  stream, b, sums + done);
    done += n;
  });
  for (std::int64_t n = total; n > 1;) {
    const std::int64_t next = ceil_div(n, kNormChunk);
    FP8AMP_LAUNCH(add_sums_kernel, blocks(ceil_div(next, kChunksPerBlock)), dim3(kThreads), 0,
                  stream, sums, n, sums + n);
    sums += n;
    n = next;
  }
  FP8AMP_LAUNCH(finish_norm_kernel, dim3(1), dim3(1), 0, stream, total ? sums : nullptr, args.norm);
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

void clip(const ClipArgs& args) {
  const auto size = [](const NormTensor& x) {
    return x.scale_inv ? std::int64_t(1) : ceil_div(x.n, kClipChunk);
  };
  for_each_batch(args.tensors, size, [&](const NormBatch& b) {
    if (b.first[b.count] == 0) return;
    FP8AMP_LAUNCH(clip_kernel, blocks(b.first[b.count]), dim3(kThreads), 0,
                  static_cast<cudaStream_t>(args.stream), b, args.norm, args.max_norm);
  });
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fp8amp::kernels::cuda
