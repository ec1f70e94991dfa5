// What a launcher needs of the CUDA runtime: a check for every call, and facts about the device.
// Defined in src/cuda/runtime.cpp.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

namespace fp8amp::gpu {
class Lease;
}

namespace fp8amp::kernels::cuda {

// Throws fp8amp::Error with the call, the place, the error's name and what it means here.
[[noreturn]] void fail(const char* call, cudaError_t error, const char* file, int line);

struct DeviceFacts {
  int compute_capability;  // 10 * major + minor: 80, 89, 90, 100, 120
  int num_processors;      // SMs
};

// Facts of the current device, or of a given one; asked of the driver once per device. Thread-safe.
const DeviceFacts& device_facts();
const DeviceFacts& device_facts(int device);

// Device memory that the launches of one operation on `stream` hand to each other: 256-byte
// aligned, not initialised. From set_temporary_memory's allocator, or the stream's own: then host
// threads that share the stream take turns while this object lives.
class Scratch {
 public:
  Scratch(cudaStream_t stream, std::size_t bytes);
  ~Scratch();
  void* data() const { return data_; }

 private:
  std::unique_ptr<gpu::Lease> lease_;
  void* data_;
};

}  // namespace fp8amp::kernels::cuda

// For every call of the runtime, and FP8AMP_CUDA_CHECK(cudaGetLastError()) after a launch.
#define FP8AMP_CUDA_CHECK(call)                                         \
  do {                                                                  \
    if (const cudaError_t error_ = (call); error_ != cudaSuccess)       \
      ::fp8amp::kernels::cuda::fail(#call, error_, __FILE__, __LINE__); \
  } while (0)
