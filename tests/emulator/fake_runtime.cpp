// Devices and errors of the fake runtime, and its control.
#include "tests/emulator/fake_runtime.h"

#include <utility>

#include "tests/emulator/fake_state.h"

namespace fake_cuda {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int device = 0;

}  // namespace

State& state() {
  static State s;
  return s;
}

int& current_device() { return device; }

cudaError_t set_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t enter(const char* function, bool needs_device, const std::string& detail) {
  State& s = state();
  ++s.calls[function];
  if (s.recording) s.recorded.push_back(detail.empty() ? function : function + (" " + detail));
  if (auto it = s.failures.find(function); it != s.failures.end() && --it->second.countdown == 0) {
    const cudaError_t error = it->second.error;
    s.failures.erase(it);
    return error;
  }
  if (!needs_device) return cudaSuccess;
  if (s.machine.count_error != cudaSuccess) return s.machine.count_error;
  return s.machine.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

void reset(const Machine& machine) {
  State& s = state();
  const Lock lock(s.mutex);
  s.machine = machine;
  s.counters = {};
  s.calls.clear();
  s.failures.clear();
  s.recording = false;
  s.recorded.clear();
  for (auto& [memory, allocation] : s.allocations) release_block(memory, allocation.bytes);
  s.allocations.clear();
  for (auto* p : s.streams) delete p;
  for (auto* p : s.events) delete p;
  for (auto* p : s.graphs) delete p;
  for (auto* p : s.executables) delete p;
  s.streams.clear();
  s.events.clear();
  s.graphs.clear();
  s.executables.clear();
  last_error = cudaSuccess;
  device = 0;
}

Counters counters() {
  const Lock lock(state().mutex);
  return state().counters;
}

void reset_counters() {
  const Lock lock(state().mutex);
  state().counters = {};
  state().calls.clear();
  state().recorded.clear();
}

std::int64_t calls(const std::string& function) {
  const Lock lock(state().mutex);
  const auto it = state().calls.find(function);
  return it == state().calls.end() ? 0 : it->second;
}

void record_calls(bool on) {
  const Lock lock(state().mutex);
  state().recording = on;
}

std::vector<std::string> recorded_calls() {
  const Lock lock(state().mutex);
  return state().recorded;
}

void fail(const std::string& function, int n, cudaError_t error) {
  const Lock lock(state().mutex);
  state().failures[function] = {n, error};
}

std::string leaks() {
  State& s = state();
  const Lock lock(s.mutex);
  std::string text;
  const auto add = [&](std::size_t n, const std::string& what) {
    if (n == 0) return;
    if (!text.empty()) text += ", ";
    text += std::to_string(n) + " " + what;
  };
  std::size_t bytes = 0;
  for (const auto& [memory, allocation] : s.allocations) bytes += allocation.bytes;
  add(s.allocations.size(), "allocations (" + std::to_string(bytes) + " bytes)");
  add(s.streams.size(), "streams");
  add(s.events.size(), "events");
  add(s.graphs.size(), "graphs");
  add(s.executables.size(), "executable graphs");
  return text;
}

int damaged_allocations() {
  const Lock lock(state().mutex);
  int damaged = 0;
  for (const auto& [memory, allocation] : state().allocations) {
    damaged += !intact(memory, allocation.bytes);
  }
  return damaged;
}

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT: the definitions below are of the global namespace

// ---- errors and devices -------------------------------------------------------------------------

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define FAKE_CUDA_NAME(name) \
  case name: return #name;
    FAKE_CUDA_NAME(cudaSuccess)
    FAKE_CUDA_NAME(cudaErrorInvalidValue)
    FAKE_CUDA_NAME(cudaErrorMemoryAllocation)
    FAKE_CUDA_NAME(cudaErrorInitializationError)
    FAKE_CUDA_NAME(cudaErrorInvalidConfiguration)
    FAKE_CUDA_NAME(cudaErrorInsufficientDriver)
    FAKE_CUDA_NAME(cudaErrorStubLibrary)
    FAKE_CUDA_NAME(cudaErrorNoDevice)
    FAKE_CUDA_NAME(cudaErrorInvalidDevice)
    FAKE_CUDA_NAME(cudaErrorInvalidResourceHandle)
    FAKE_CUDA_NAME(cudaErrorNotReady)
    FAKE_CUDA_NAME(cudaErrorIllegalAddress)
    FAKE_CUDA_NAME(cudaErrorLaunchFailure)
    FAKE_CUDA_NAME(cudaErrorLaunchOutOfResources)
    FAKE_CUDA_NAME(cudaErrorNoKernelImageForDevice)
    FAKE_CUDA_NAME(cudaErrorStreamCaptureUnsupported)
    FAKE_CUDA_NAME(cudaErrorStreamCaptureInvalidated)
    FAKE_CUDA_NAME(cudaErrorStreamCaptureUnmatched)
    FAKE_CUDA_NAME(cudaErrorStreamCaptureUnjoined)
    FAKE_CUDA_NAME(cudaErrorStreamCaptureImplicit)
    FAKE_CUDA_NAME(cudaErrorIllegalState)
    FAKE_CUDA_NAME(cudaErrorUnknown)
#undef FAKE_CUDA_NAME
    default: return "unrecognized error code";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : cudaGetErrorName(error);
}

cudaError_t cudaDriverGetVersion(int* version) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaDriverGetVersion", false));
  *version = state().machine.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaRuntimeGetVersion", false));
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock(state().mutex);
  *count = 0;
  FAKE_CUDA_CHECK(enter("cudaGetDeviceCount"));
  *count = state().machine.devices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* index) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaGetDevice"));
  *index = device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaSetDevice"));
  if (index < 0 || index >= state().machine.devices) return set_error(cudaErrorInvalidDevice);
  device = index;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaDeviceGetAttribute"));
  const Machine& m = state().machine;
  if (index < 0 || index >= m.devices) return set_error(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = m.multiprocessors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = m.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = m.minor; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = m.major >= 12 || m.minor == 9 ? 1536 : 2048;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = m.major >= 9 && m.major < 12 ? 32 : 24;
      break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 99 * 1024; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    default: return set_error(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
