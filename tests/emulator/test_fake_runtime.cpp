// The fake CUDA runtime: devices, memory, counters, failures, capture and replay.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/portable.cuh"
#include "tests/emulator/fake_runtime.h"

namespace {

__global__ void add_kernel(int* x, int n, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += value;
}

class FakeRuntime : public testing::Test {
 protected:
  void SetUp() override { fake_cuda::reset(); }
  void TearDown() override { fake_cuda::reset(); }
};

int* new_ints(int n) {
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, n * sizeof(int)), cudaSuccess);
  return static_cast<int*>(p);
}

TEST_F(FakeRuntime, Devices) {
  int value = -1;
  fake_cuda::reset({.devices = 2, .major = 8, .minor = 9, .multiprocessors = 142});
  EXPECT_EQ(cudaGetDeviceCount(&value), cudaSuccess);
  EXPECT_EQ(value, 2);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaGetDevice(&value), cudaSuccess);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMinor, 1), cudaSuccess);
  EXPECT_EQ(value, 9);
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 1), cudaSuccess);
  EXPECT_EQ(value, 142);
}

TEST_F(FakeRuntime, NoDeviceOrDriver) {
  int value = -1;
  void* p = nullptr;
  fake_cuda::reset({.devices = 0});
  EXPECT_EQ(cudaGetDeviceCount(&value), cudaErrorNoDevice);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(cudaMalloc(&p, 8), cudaErrorNoDevice);
  fake_cuda::reset({.devices = 0, .count_error = cudaErrorInsufficientDriver, .driver_version = 0});
  EXPECT_EQ(cudaGetDeviceCount(&value), cudaErrorInsufficientDriver);
  EXPECT_EQ(cudaDriverGetVersion(&value), cudaSuccess);
  EXPECT_EQ(value, 0);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInsufficientDriver), "cudaErrorInsufficientDriver");
}

TEST_F(FakeRuntime, MemoryAndCounters) {
  int* x = new_ints(100);
  std::vector<int> host(100, 5);
  EXPECT_EQ(cudaMemsetAsync(x, 0, 400, nullptr), cudaSuccess);
  FP8AMP_LAUNCH(add_kernel, 1, 128, 0, nullptr, x, 100, 3);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(host.data(), x, 400, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(std::count(host.begin(), host.end(), 3), 100);
  EXPECT_EQ(cudaMemsetAsync(x + 50, 0, 204, nullptr), cudaErrorInvalidValue);  // 4 bytes too many
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const fake_cuda::Counters counters = fake_cuda::counters();
  EXPECT_EQ(counters.launches, 1);
  EXPECT_EQ(counters.memsets, 1);
  EXPECT_EQ(counters.memset_bytes, 400);
  EXPECT_EQ(counters.copy_bytes, 400);
  EXPECT_EQ(counters.allocations, 1);
  EXPECT_EQ(counters.synchronizations, 2);
  EXPECT_EQ(fake_cuda::calls("cudaMemsetAsync"), 2);
  EXPECT_EQ(fake_cuda::leaks(), "1 allocations (400 bytes)");
  EXPECT_EQ(cudaFree(x), cudaSuccess);
  EXPECT_EQ(cudaFree(x), cudaErrorInvalidValue);
  EXPECT_EQ(fake_cuda::leaks(), "");
  fake_cuda::reset_counters();
  EXPECT_EQ(fake_cuda::counters().launches, 0);
}

TEST_F(FakeRuntime, GuardZones) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer ends the process before the guard zones are looked at";
#else
  int* x = new_ints(100);
  FP8AMP_LAUNCH(add_kernel, 1, 128, 0, nullptr, x, 101, 3);
  EXPECT_EQ(fake_cuda::damaged_allocations(), 1);
  EXPECT_EQ(cudaFree(x), cudaErrorIllegalAddress);
#endif
}

TEST_F(FakeRuntime, Failures) {
  void* p = nullptr;
  fake_cuda::fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&p, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&p, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&p, 8), cudaSuccess);
  fake_cuda::fail("launch", 1, cudaErrorLaunchOutOfResources);
  int x = 1;
  FP8AMP_LAUNCH(add_kernel, 1, 1, 0, nullptr, &x, 1, 3);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchOutOfResources);
  EXPECT_EQ(x, 1);
}

TEST_F(FakeRuntime, RecordsCalls) {
  int x = 1;
  fake_cuda::record_calls(true);
  cudaMemsetAsync(&x, 0, 4, nullptr);
  FP8AMP_LAUNCH(add_kernel, 1, 1, 0, nullptr, &x, 1, 3);
  EXPECT_EQ(fake_cuda::recorded_calls(),
            (std::vector<std::string>{"cudaMemsetAsync", "launch add_kernel"}));
}

TEST_F(FakeRuntime, StreamOfAnotherDevice) {
  fake_cuda::reset({.devices = 2});
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  cudaSetDevice(1);
  int x = 1;
  FP8AMP_LAUNCH(add_kernel, 1, 1, 0, stream, &x, 1, 3);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(x, 1);
}

TEST_F(FakeRuntime, CaptureAndReplay) {
  cudaStream_t stream, other;
  cudaEvent_t event;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&other), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  int* x = new_ints(4);
  int host[4] = {9, 9, 9, 9}, value = 5;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(x, 0, 16, stream), cudaSuccess);
  FP8AMP_LAUNCH(add_kernel, 1, 4, 0, stream, x, 4, value);
  value = 100;  // the launch has its own copy
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(host, x, 16, cudaMemcpyDeviceToHost, other), cudaSuccess);
  EXPECT_EQ(fake_cuda::counters().launches, 0);
  cudaStreamCaptureStatus status;
  EXPECT_EQ(cudaStreamIsCapturing(other, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(host[0], 9);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 2; ++i) {
    host[3] = 0;
    EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    EXPECT_EQ(host[3], 5);
  }
  EXPECT_EQ(fake_cuda::counters().launches, 2);
  EXPECT_EQ(fake_cuda::counters().graph_launches, 2);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(x), cudaSuccess);
  EXPECT_EQ(fake_cuda::leaks(), "");
}

TEST_F(FakeRuntime, IllegalWhileCapturing) {
  cudaStream_t stream;
  cudaGraph_t graph;
  void* p = nullptr;
  int x = 0;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const auto refused = [&](cudaError_t expected, auto call) {
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(call(), expected);
    EXPECT_EQ(cudaGetLastError(), expected);
    EXPECT_EQ(cudaMemsetAsync(&x, 0, 4, stream), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
  };
  refused(cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&p, 8); });
  refused(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream); });
  refused(cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); });
  refused(cudaErrorStreamCaptureImplicit, [&] {
    FP8AMP_LAUNCH(add_kernel, 1, 1, 0, nullptr, &x, 1, 3);
    return cudaPeekAtLastError();
  });
  EXPECT_EQ(x, 0);
}

}  // namespace
