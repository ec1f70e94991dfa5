// Launcher of gemm_finish.
#include "kernels/cuda/gemm_finish.cuh"

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm_finish.h"

namespace fp8amp::kernels::cuda {
namespace {

constexpr int64_t kMaxGridY = 65535, kRowsPerBlock = 8 * 4;

template <DType kType>
void launch(const GemmFinishParams& p, cudaStream_t stream) {
  const dim3 grid(
      static_cast<unsigned>(std::min<int64_t>((p.n + 31) / 32, 1 << 20)),
      static_cast<unsigned>(std::min((p.m + kRowsPerBlock - 1) / kRowsPerBlock, kMaxGridY)));
  FP8AMP_LAUNCH((gemm_finish_kernel<kType>), grid, dim3(32, 8), 0, stream, p);
}

}  // namespace

void gemm_finish(const GemmFinishArgs& a) {
  const GemmFinishParams p{a.sums,   a.sums_row, a.a_scale_inv, a.b_scale_inv,
                           a.a_rows, a.b_rows,   a.bias,        a.bias_type,
                           a.d,      a.m,        a.n,           a.accumulate};
  const auto stream = static_cast<cudaStream_t>(a.stream);
  switch (a.d_type) {
    case DType::kFloat32: launch<DType::kFloat32>(p, stream); break;
    case DType::kFloat16: launch<DType::kFloat16>(p, stream); break;
    default: launch<DType::kBFloat16>(p, stream); break;
  }
  FP8AMP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fp8amp::kernels::cuda
