// The emulator itself: right results under every schedule.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/cuda/portable.cuh"

namespace {

constexpr unsigned kFull = 0xffffffffu;

// ---- results ------------------------------------------------------------------------------------

template <int kBlock, class T>
__global__ void __launch_bounds__(kBlock)
    sum_kernel(const T* __restrict__ x, std::int64_t n, T* sums) {
  FP8AMP_SHARED(T, parts, [kBlock / 32]);
  T s = 0;
  for (std::int64_t i = blockIdx.x * std::int64_t(kBlock) + threadIdx.x; i < n;
       i += std::int64_t(gridDim.x) * kBlock) {
    s += x[i];
  }
  for (int offset = 16; offset > 0; offset >>= 1) s += __shfl_xor_sync(kFull, s, offset);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x != 0) return;
  s = 0;
  for (T part : parts) s += part;
  sums[blockIdx.x] = s;
}

TEST(Emulator, BlockSum) {
  for (int n : {0, 1, 31, 255, 256, 257, 5000}) {
    std::vector<int> x(n);
    std::iota(x.begin(), x.end(), 1);
    emu::for_each_schedule([&] {
      std::vector<int> sums(3, -1);
      FP8AMP_LAUNCH((sum_kernel<256, int>), 3, 256, 0, nullptr, x.data(), n, sums.data());
      EXPECT_EQ(sums[0] + sums[1] + sums[2], n * (n + 1) / 2);
    });
  }
}

__global__ void transpose_kernel(const std::uint16_t* x, std::uint16_t* y, int rows, int cols) {
  FP8AMP_SHARED(std::uint16_t, tile, [16][17]);
  int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x;
  if (r < rows && c < cols) tile[threadIdx.y][threadIdx.x] = x[r * cols + c];
  __syncthreads();
  r = blockIdx.y * 16 + threadIdx.x, c = blockIdx.x * 16 + threadIdx.y;
  if (r < rows && c < cols) y[c * rows + r] = tile[threadIdx.x][threadIdx.y];
}

TEST(Emulator, TransposingTile) {
  const int rows = 37, cols = 50;
  std::vector<std::uint16_t> x(rows * cols);
  std::iota(x.begin(), x.end(), std::uint16_t(7));
  emu::for_each_schedule([&] {
    std::vector<std::uint16_t> y(x.size());
    FP8AMP_LAUNCH(transpose_kernel, dim3(4, 3), dim3(16, 16), 0, nullptr, x.data(), y.data(), rows,
                  cols);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c) ASSERT_EQ(y[c * rows + r], x[r * cols + c]);
    }
  });
}

struct Totals {
  unsigned max, count, exchanged;
  int min, negative;
  float sum;
  double wide;
  unsigned long long big;
};

__global__ void atomics_kernel(const __grid_constant__ Totals start, Totals* totals) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x + start.count;
  atomicMax(&totals->max, i * 7919 % 1009);
  atomicAdd(&totals->count, 1u);
  atomicMin(&totals->min, -int(i));
  atomicSub(&totals->negative, 1);
  atomicAdd(&totals->sum, 0.5f);
  atomicAdd(&totals->wide, 0.25);
  atomicAdd(&totals->big, 1ull << 32);
  unsigned seen = 0, expected;
  do {
    expected = seen;
    seen = atomicCAS(&totals->exchanged, expected, expected + 2);
  } while (seen != expected);
}

TEST(Emulator, Atomics) {
  emu::for_each_schedule([&] {
    Totals totals{};
    FP8AMP_LAUNCH(atomics_kernel, 5, 200, 0, nullptr, Totals{}, &totals);
    EXPECT_EQ(totals.max, 1008u);
    EXPECT_EQ(totals.count, 1000u);
    EXPECT_EQ(totals.min, -999);
    EXPECT_EQ(totals.negative, -1000);
    EXPECT_EQ(totals.sum, 500.0f);
    EXPECT_EQ(totals.wide, 250.0);
    EXPECT_EQ(totals.big, 1000ull << 32);
    EXPECT_EQ(totals.exchanged, 2000u);
  });
}

__global__ void warp_kernel(int* out) {
  const int i = int(threadIdx.x), lane = i % 32;
  int k = 0;
  const auto put = [&](int value) { out[k++ * 64 + i] = value; };
  put(__shfl_sync(kFull, i, 5));
  put(__shfl_down_sync(kFull, i, 3, 16));
  put(__shfl_up_sync(kFull, i, 3));
  put(int(__ballot_sync(kFull, lane % 3 == 0)));
  put(__any_sync(kFull, lane == 9) + 2 * __all_sync(kFull, lane < 31) + 4 * __all_sync(kFull, 1));
  put(__reduce_max_sync(kFull, -i));
  put(int(__reduce_min_sync(kFull, unsigned(-i - 1))));
  put(int(__reduce_add_sync(kFull, unsigned(i))));
  put(__syncthreads_count(i % 2) + 100 * __syncthreads_or(i == 3) +
      1000 * __syncthreads_and(i != 3));
  if (lane < 4) put(__shfl_xor_sync(0xfu, i, 1));
}

TEST(Emulator, WarpAndBlockOperations) {
  emu::for_each_schedule([&] {
    std::vector<int> out(10 * 64, -1);
    FP8AMP_LAUNCH(warp_kernel, 1, 64, 0, nullptr, out.data());
    for (int i = 0; i < 64; ++i) {
      const int lane = i % 32, warp = i / 32 * 32;
      const auto got = [&](int k) { return out[k * 64 + i]; };
      EXPECT_EQ(got(0), warp + 5);
      EXPECT_EQ(got(1), lane % 16 < 13 ? i + 3 : i);
      EXPECT_EQ(got(2), lane >= 3 ? i - 3 : i);
      EXPECT_EQ(unsigned(got(3)), 0x49249249u);
      EXPECT_EQ(got(4), 1 + 4);
      EXPECT_EQ(got(5), -warp);
      EXPECT_EQ(got(6), -(warp + 32));
      EXPECT_EQ(got(7), warp * 32 + 496);
      EXPECT_EQ(got(8), 32 + 100);
      EXPECT_EQ(got(9), lane < 4 ? i ^ 1 : -1);
    }
  });
}

__global__ void reverse_kernel(int* x, int n) {
  FP8AMP_DYNAMIC_SHARED(int, copy);
  for (int i = threadIdx.x; i < n; i += blockDim.x) copy[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = copy[n - 1 - i];
}

TEST(Emulator, DynamicSharedMemory) {
  std::vector<int> x(1000);
  std::iota(x.begin(), x.end(), 0);
  FP8AMP_LAUNCH(reverse_kernel, 1, 128, 4000, nullptr, x.data(), 1000);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(x[i], 999 - i);
}

TEST(Emulator, CountsWhatRan) {
  std::vector<int> x(100, 1), sums(2);
  emu::statistics = {};
  FP8AMP_LAUNCH((sum_kernel<64, int>), 2, 64, 0, nullptr, x.data(), 100, sums.data());
  EXPECT_EQ(emu::statistics.launches, 1u);
  EXPECT_EQ(emu::statistics.blocks, 2u);
  EXPECT_EQ(emu::statistics.threads, 128u);
  EXPECT_EQ(emu::statistics.barriers, 2u);
  EXPECT_EQ(emu::statistics.warp_operations, 2u * 2 * 5);
}

}  // namespace
