// Devices of a build with CUDA.
#include "src/device.h"

#include "src/cuda/cublaslt.h"
#include "src/cuda/nccl.h"
#include "src/cuda/runtime.h"

namespace fp8amp {

bool built_with_cuda() { return true; }
int device_count() { return gpu::device_count(); }
std::string cuda_status() { return gpu::status(); }
std::string cublaslt_status() { return gpu::cublaslt_status(); }
std::string nccl_status() { return gpu::nccl_status(); }

bool is_capturing(void* stream) { return gpu::is_capturing(static_cast<cudaStream_t>(stream)); }

struct ScopedDevice::State {
  explicit State(int device) : guard(device) {}
  gpu::DeviceGuard guard;
};
ScopedDevice::ScopedDevice(Device device)
    : state_(device.type == DeviceType::kCuda ? new State(device.index) : nullptr) {}
ScopedDevice::~ScopedDevice() = default;

}  // namespace fp8amp
