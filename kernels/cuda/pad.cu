// Launchers of pad.
#include "kernels/cuda/pad.cuh"

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/pad.h"

namespace fp8amp::kernels::cuda {
namespace {

constexpr int64_t kMaxGridY = 65535;

unsigned blocks(int64_t n, int64_t per_block, int64_t most) {
  return static_cast<unsigned>(std::min((n + per_block - 1) / per_block, most));
}

template <int kWidth, class Out>
void copy(const PadParams& p, cudaStream_t stream) {
  const dim3 grid(blocks(p.y_k, 32 * 16, 1 << 20), blocks(p.y_rows, 8, kMaxGridY));
  FP8AMP_LAUNCH((pad_kernel<kWidth, Out>), grid, dim3(32, 8), 0, stream, p);
}

template <bool kAligned, class Out>
void transpose(const PadParams& p, cudaStream_t stream) {
  const dim3 grid(blocks(p.y_k, 64, int64_t(1) << 30), blocks(p.y_rows, 64, kMaxGridY));
  FP8AMP_LAUNCH((pad_transpose_kernel<kAligned, Out>), grid, dim3(256), 0, stream, p);
}

// The widest load that address and stride allow.
template <class Out>
void dispatch(const PadParams& p, bool k_contiguous, cudaStream_t stream) {
  const auto multiple_of = [&](uint64_t bytes) {
    return (reinterpret_cast<uintptr_t>(p.x) | static_cast<uint64_t>(p.stride)) % bytes == 0;
  };
  if (!k_contiguous)
    return multiple_of(4) ? transpose<true, Out>(p, stream) : transpose<false, Out>(p, stream);
  if (multiple_of(16)) return copy<16, Out>(p, stream);
  if (multiple_of(4)) return copy<4, Out>(p, stream);
  copy<1, Out>(p, stream);
}

template <class F>
void decode(const PadParams& p, bool k_contiguous, cudaStream_t stream) {
  p.scale_inv ? dispatch<DecodeBlocksToBFloat16<F>>(p, k_contiguous, stream)
              : dispatch<DecodeToBFloat16<F>>(p, k_contiguous, stream);
}

}  // namespace

void pad(const PadArgs& a) {
  const bool k_contiguous = a.x_k == 1;
  const PadParams p{
      a.x,     k_contiguous ? a.x_row : a.x_k, a.rows, a.k, a.y, a.y_rows, a.y_k, a.scale_inv,
      a.layout};
  const auto stream = static_cast<cudaStream_t>(a.stream);
  if (a.y_type == a.x_type)
    dispatch<CopyCodes>(p, k_contiguous, stream);
  else if (a.x_type == DType::kE4M3)
    decode<numerics::E4M3>(p, k_contiguous, stream);
  else
    decode<numerics::E5M2>(p, k_contiguous, stream);
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fp8amp::kernels::cuda
