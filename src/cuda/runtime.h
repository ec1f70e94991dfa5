// The CUDA runtime: is there a device, and if not why; device facts and the check of every call
// come from kernels/cuda/device.h. cudart is linked statically: all of this works without a driver.
//
// The namespace is gpu, because fp8amp::cuda(index) is a function of the public API.
#pragma once
#include <string>

#include "kernels/cuda/device.h"

namespace fp8amp::gpu {

using kernels::cuda::device_facts;
using kernels::cuda::DeviceFacts;

int device_count();    // never throws
std::string status();  // "ok", or the reason for device_count() == 0

int current_device();
std::string version_text(int compute_capability);  // 90: "9.0"
bool is_capturing(cudaStream_t stream);

// Makes a device current for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_;
  bool changed_;
};

}  // namespace fp8amp::gpu
