#include "src/cuda/runtime.h"

#include <map>
#include <mutex>

#include "fp8amp/error.h"

namespace fp8amp::gpu {
namespace {

std::string version(int v) {
  return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
}

// Without a driver the runtime says "driver too old" (no libcuda) or "stub library": only
// cudaDriverGetVersion() == 0 tells both from a driver that really is too old.
std::string explain(cudaError_t error) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const std::string name =
      std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
  if (driver == 0) return "no NVIDIA driver (libcuda.so.1 not found, or a stub): " + name;
  if (error == cudaErrorInsufficientDriver)
    return "the driver supports CUDA " + version(driver) + ", fp8amp was built with CUDA " +
           version(runtime) +
           ": update the driver, or build fp8amp with an nvcc of the driver's version. " + name;
  if (error == cudaErrorNoKernelImageForDevice)
    return "fp8amp was built without code for this GPU: set FP8AMP_CUDA_ARCHS. " + name;
  if (error == cudaErrorNoDevice)
    return "the driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?): " + name;
  return name + ", driver CUDA " + version(driver) + ", runtime " + version(runtime);
}

}  // namespace

int device_count() {
  int n = 0;
  const cudaError_t error = cudaGetDeviceCount(&n);
  if (error != cudaSuccess) (void)cudaGetLastError();  // else the next check would report it
  return error == cudaSuccess ? n : 0;
}

std::string status() {
  int n = 0;
  const cudaError_t error = cudaGetDeviceCount(&n);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return explain(error);
  }
  return n > 0 ? "ok" : "the driver reports no device";
}

std::string version_text(int compute_capability) {
  return std::to_string(compute_capability / 10) + "." + std::to_string(compute_capability % 10);
}

int current_device() {
  int device = 0;
  FP8AMP_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  FP8AMP_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

DeviceGuard::DeviceGuard(int device) : previous_(current_device()), changed_(device != previous_) {
  if (changed_) FP8AMP_CUDA_CHECK(cudaSetDevice(device));
}

DeviceGuard::~DeviceGuard() {
  // This makes a context there if there was none: callers that mind make their device current
  // first, as torch's ops do.
  if (changed_) (void)cudaSetDevice(previous_);
}

}  // namespace fp8amp::gpu

namespace fp8amp::kernels::cuda {

void fail(const char* call, cudaError_t error, const char* file, int line) {
  (void)cudaGetLastError();
  throw Error(std::string(call) + " failed at " + file + ":" + std::to_string(line) + ": " +
              gpu::explain(error));
}

const DeviceFacts& device_facts(int device) {
  static std::mutex mutex;
  static std::map<int, DeviceFacts> known;  // a map: references stay valid
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  int major = 0, minor = 0, processors = 0;
  FP8AMP_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  FP8AMP_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  FP8AMP_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  return known.emplace(device, DeviceFacts{10 * major + minor, processors}).first->second;
}

const DeviceFacts& device_facts() { return device_facts(gpu::current_device()); }

}  // namespace fp8amp::kernels::cuda
