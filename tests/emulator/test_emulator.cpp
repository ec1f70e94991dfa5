#include <gtest/gtest.h>
#include <vector>
#include "kernels/cuda/portable.cuh"
namespace {
__global__ void __launch_bounds__(256)
    sum_kernel(const float* __restrict__ x, std::int64_t n, float* sum) {
  FP8AMP_SHARED(float, parts, [8]);
  float s = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) s += x[i];
  for (int o = 16; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) {
    s = 0;
    for (int i = 0; i < 8; ++i) s += parts[i];
    *sum = s;
  }
}
TEST(Emulator, Sum) {
  std::vector<float> x(1000, 1.0f);
  emu::for_each_schedule([&] {
    float sum = -1;
    FP8AMP_LAUNCH(sum_kernel, 1, 256, 0, nullptr, x.data(), 1000, &sum);
    EXPECT_EQ(sum, 1000);
  });
}
}  // namespace
