// That the emulator reports each kind of fault.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/portable.cuh"

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddress = true;
#else
constexpr bool kAddress = false;
#endif
#if defined(__SANITIZE_THREAD__)
constexpr bool kRaces = true;
#else
constexpr bool kRaces = false;
#endif

namespace {

constexpr unsigned kFull = 0xffffffffu;

std::string fault_of(const std::function<void()>& launch) {
  try {
    launch();
  } catch (const emu::Error& error) {
    return error.what();
  }
  return "no fault";
}

#define EXPECT_FAULT(kernel, grid, block, shared, text, ...)                                  \
  EXPECT_NE(fault_of([&] {                                                                    \
              FP8AMP_LAUNCH(kernel, grid, block, shared, nullptr __VA_OPT__(, ) __VA_ARGS__); \
            }).find(text),                                                                    \
            std::string::npos)                                                                \
      << fault_of([&] {                                                                       \
           FP8AMP_LAUNCH(kernel, grid, block, shared, nullptr __VA_OPT__(, ) __VA_ARGS__);    \
         })

// A kernel that ThreadSanitizer must object to: it reports, and the process ends with code 66.
#define EXPECT_RACE(statement)                      \
  do {                                              \
    GTEST_FLAG_SET(death_test_style, "threadsafe"); \
    EXPECT_EXIT(                                    \
        {                                           \
          statement;                                \
          std::exit(0);                             \
        },                                          \
        testing::ExitedWithCode(66), "data race");  \
  } while (false)

// ---- faults that end the launch -----------------------------------------------------------------

__global__ void divergent_kernel() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void deadlock_kernel() {
  if (threadIdx.x == 0) __syncwarp(3u);
  if (threadIdx.x == 1) __syncthreads();
}
__global__ void outside_mask_kernel() { __syncwarp(1u); }
__global__ void half_mask_kernel(int* out) {
  out[threadIdx.x] = threadIdx.x < 16 ? __shfl_xor_sync(0xffffu, 1, 16) : 0;
}
__global__ void exited_kernel(int* out) {
  if (threadIdx.x == 7) return;
  out[threadIdx.x] = __shfl_xor_sync(kFull, 1, 16);
}
__global__ void two_operations_kernel(int* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(kFull, 1, 1);
  } else {
    out[threadIdx.x] = __any_sync(kFull, 1);
  }
}
__global__ void beyond_block_kernel() {
  if (threadIdx.x < 4) __syncwarp(0x10fu);
}
__global__ void large_kernel() {
  FP8AMP_SHARED(float, big, [13 * 1024]);
  big[threadIdx.x] = 0;
}
__global__ void trap_kernel() {
  if (threadIdx.x == 3) __trap();
}
__global__ void empty_kernel() {}
__global__ void count_kernel(int* out) {
  out[blockIdx.x * 32 + threadIdx.x] = __syncthreads_count(1);
}

TEST(EmulatorFaults, Barriers) {
  EXPECT_FAULT(divergent_kernel, 1, 64, 0, "different barriers");
  EXPECT_FAULT(divergent_kernel, 1, 64, 0, "test_emulator_faults.cpp:");
  EXPECT_FAULT(divergent_kernel, 1, 64, 0, "kernel divergent_kernel, block (0, 0, 0)");
  EXPECT_FAULT(deadlock_kernel, 1, 32, 0, "waits at a block barrier");
}

TEST(EmulatorFaults, WarpOperations) {
  std::vector<int> out(64);
  EXPECT_FAULT(outside_mask_kernel, 1, 32, 0, "not in the mask of its own");
  EXPECT_FAULT(half_mask_kernel, 1, 32, 0, "reads a lane outside its mask", out.data());
  EXPECT_FAULT(exited_kernel, 1, 32, 0, "has exited", out.data());
  EXPECT_FAULT(two_operations_kernel, 1, 32, 0, "different warp operations", out.data());
  EXPECT_FAULT(beyond_block_kernel, 1, 4, 0, "beyond the block");
}

TEST(EmulatorFaults, Launches) {
  EXPECT_FAULT(empty_kernel, 0, 32, 0, "the grid is empty");
  EXPECT_FAULT(empty_kernel, dim3(1, 65536), 32, 0, "65535");
  EXPECT_FAULT(empty_kernel, 1, 1025, 0, "1 to 1024 threads");
  EXPECT_FAULT(empty_kernel, 1, 0, 0, "1 to 1024 threads");
  EXPECT_FAULT(empty_kernel, 1, dim3(1, 1, 65), 0, "1024 x 1024 x 64");
  EXPECT_FAULT(empty_kernel, 1, 32, 50000, "too much dynamic shared memory");
  EXPECT_FAULT(large_kernel, 1, 32, 0, "needs more shared memory than 49152 bytes");
  EXPECT_FAULT(trap_kernel, 1, 32, 0, "__trap");
}

TEST(EmulatorFaults, NextLaunchIsSound) {
  EXPECT_FAULT(divergent_kernel, 4, 64, 0, "different barriers");
  std::vector<int> out(64);
  FP8AMP_LAUNCH(count_kernel, 2, 32, 0, nullptr, out.data());
  for (int value : out) EXPECT_EQ(value, 32);
}

// ---- faults that show in results or to a sanitizer ----------------------------------------------

__global__ void uninitialized_kernel(float* out) {
  FP8AMP_SHARED(float, values, [32]);
  if (threadIdx.x < 31) values[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}

TEST(EmulatorFaults, UninitializedSharedMemory) {
  std::vector<float> out(32);
  FP8AMP_LAUNCH(uninitialized_kernel, 1, 32, 0, nullptr, out.data());
  EXPECT_EQ(out[30], 1);
  EXPECT_TRUE(std::isnan(out[31]));
  emu::Schedule backward(1);
  FP8AMP_LAUNCH(uninitialized_kernel, 1, 32, 0, nullptr, out.data());
  EXPECT_GT(out[31], 3e38f);
}

__global__ void no_barrier_kernel(int* out) {
  FP8AMP_SHARED(int, values, [64]);
  values[threadIdx.x] = int(threadIdx.x);
  out[threadIdx.x] = values[63 - threadIdx.x];
}

TEST(EmulatorFaults, MissingBarrier) {
  std::vector<int> forward(64), backward(64);
  if (kRaces) {
    EXPECT_RACE(FP8AMP_LAUNCH(no_barrier_kernel, 1, 64, 0, nullptr, forward.data()));
    return;
  }
  FP8AMP_LAUNCH(no_barrier_kernel, 1, 64, 0, nullptr, forward.data());
  emu::Schedule schedule(1);
  FP8AMP_LAUNCH(no_barrier_kernel, 1, 64, 0, nullptr, backward.data());
  EXPECT_NE(forward, backward);
}

__global__ void shared_overflow_kernel(int* out, int n) {
  FP8AMP_SHARED(int, values, [8]);
  int* pointer = values;
  for (int i = 0; i < n; ++i) pointer[i] = i;
  out[0] = pointer[n - 1];
}
__global__ void copy_kernel(const uint4* x, uint4* y) { y[threadIdx.x] = __ldg(x + threadIdx.x); }

TEST(EmulatorFaults, OutOfBounds) {
  if (!kAddress) GTEST_SKIP() << "needs -fsanitize=address";
  int out = 0;
  FP8AMP_LAUNCH(shared_overflow_kernel, 1, 1, 0, nullptr, &out, 8);
  EXPECT_EQ(out, 7);
  EXPECT_DEATH(FP8AMP_LAUNCH(shared_overflow_kernel, 1, 1, 0, nullptr, &out, 9),
               "AddressSanitizer");
  std::vector<uint4> x(33), y(32);
  FP8AMP_LAUNCH(copy_kernel, 1, 32, 0, nullptr, x.data(), y.data());
  EXPECT_DEATH(FP8AMP_LAUNCH(copy_kernel, 1, 33, 0, nullptr, x.data(), y.data()),
               "AddressSanitizer");
}

TEST(EmulatorFaults, Misaligned) {
  if (!kAddress) GTEST_SKIP() << "needs -fsanitize=address,undefined";
  std::vector<uint4> x(33), y(32);
  const auto* shifted = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(x.data()) + 4);
  EXPECT_DEATH(FP8AMP_LAUNCH(copy_kernel, 1, 32, 0, nullptr, shifted, y.data()), "misaligned|SEGV");
}

// Every block writes its part; the last one to finish adds them up.
template <bool kFences>
__global__ void last_block_kernel(int* parts, unsigned* finished, int* sum) {
  parts[blockIdx.x] = int(blockIdx.x);
  if (kFences) __threadfence();
  if (atomicAdd(finished, 1u) != gridDim.x - 1) return;
  if (kFences) __threadfence();
  *sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) *sum += parts[i];
}

TEST(EmulatorFaults, LastBlockNeedsFences) {
  std::vector<int> parts(10);
  emu::for_each_schedule([&] {
    unsigned finished = 0;
    int sum = 0;
    FP8AMP_LAUNCH(last_block_kernel<true>, 10, 1, 0, nullptr, parts.data(), &finished, &sum);
    EXPECT_EQ(sum, 45);
  });
  if (!kRaces) GTEST_SKIP() << "that the fences are needed shows with -fsanitize=thread";
  unsigned finished = 0;
  int sum = 0;
  EXPECT_RACE(
      FP8AMP_LAUNCH(last_block_kernel<false>, 10, 1, 0, nullptr, parts.data(), &finished, &sum));
}

__global__ void same_word_kernel(int* x) {
  if (threadIdx.x == 0) *x = int(blockIdx.x);
}
__global__ void shuffle_orders_nothing_kernel(int* x, int* y) {
  if (threadIdx.x == 0) *x = 1;
  __shfl_sync(kFull, 0, 0);
  if (threadIdx.x == 1) *y = *x;
}
__global__ void syncwarp_orders_kernel(int* x, int* y) {
  if (threadIdx.x == 0) *x = 1;
  __syncwarp();
  if (threadIdx.x == 1) *y = *x;
}

TEST(EmulatorFaults, Races) {
  if (!kRaces) GTEST_SKIP() << "needs -fsanitize=thread";
  int x = 0, y = 0;
  FP8AMP_LAUNCH(syncwarp_orders_kernel, 1, 32, 0, nullptr, &x, &y);
  FP8AMP_LAUNCH(syncwarp_orders_kernel, 1, 32, 0, nullptr, &x, &y);
  EXPECT_EQ(y, 1);
  EXPECT_RACE(FP8AMP_LAUNCH(same_word_kernel, 2, 32, 0, nullptr, &x));
  EXPECT_RACE(FP8AMP_LAUNCH(shuffle_orders_nothing_kernel, 1, 32, 0, nullptr, &x, &y));
}

}  // namespace
