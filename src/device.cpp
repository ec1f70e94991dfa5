// Devices of a build without CUDA. With it, src/cuda/device.cpp takes the place of this file.
#include "src/device.h"

#ifndef FP8AMP_HAS_CUDA
namespace fp8amp {
namespace {
constexpr const char* kNoCuda = "this build of fp8amp has no CUDA backend";
}

bool built_with_cuda() { return false; }
int device_count() { return 0; }
std::string cuda_status() { return kNoCuda; }
std::string cublaslt_status() { return std::string("not looked for: ") + kNoCuda; }
std::string nccl_status() { return std::string("not looked for: ") + kNoCuda; }

bool is_capturing(void*) { return false; }
void set_temporary_memory(const TemporaryMemory&) {}

struct ScopedDevice::State {};
ScopedDevice::ScopedDevice(Device) {}  // the operation itself refuses a CUDA device
ScopedDevice::~ScopedDevice() = default;

}  // namespace fp8amp
#endif
