// State of the fake runtime, shared by its files.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/emulator/fake_runtime.h"

// The handles of cuda_runtime_api.h point to these.
struct CUgraph_st {
  std::vector<std::function<void()>> nodes;
  bool invalid = false;  // a call during the capture was not allowed
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> nodes;
};
struct CUstream_st {
  int device = 0;
  CUgraph_st* capture = nullptr;
  bool origin = false;  // cudaStreamBeginCapture was called for it; else it joined by an event
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};
struct CUevent_st {
  CUgraph_st* capture = nullptr;
  double milliseconds = 0;
  bool recorded = false;
};

namespace fake_cuda {

struct Allocation {
  std::size_t bytes;
  int device;
};
struct Failure {
  int countdown;
  cudaError_t error;
};

struct State {
  std::recursive_mutex mutex;
  Machine machine;
  Counters counters;
  std::map<std::string, std::int64_t> calls;
  std::map<std::string, Failure> failures;
  bool recording = false;
  std::vector<std::string> recorded;
  std::map<char*, Allocation> allocations;
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  std::set<CUgraph_st*> graphs;
  std::set<CUgraphExec_st*> executables;
};
State& state();

using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t set_error(cudaError_t error);  // remembers it for cudaGetLastError
// First line of each function: counts the call, and returns the failure meant for it. `device`: the
// function needs a device.
cudaError_t enter(const char* function, bool device = true, const std::string& detail = {});
int& current_device();

// Whether work may go to this stream now.
cudaError_t check_stream(cudaStream_t stream);
// cudaErrorStreamCaptureUnsupported, and the capture is spoilt, if any stream captures.
cudaError_t refuse_while_capturing();
// Runs the work or records it. The caller holds the lock.
void enqueue(cudaStream_t stream, std::function<void()> work);

cudaError_t free_memory(void* p);
void release_block(char* memory, std::size_t bytes);
bool intact(const char* memory, std::size_t bytes);  // its guard zones
// cudaErrorInvalidValue if [p, p + bytes) begins in a known allocation and leaves it.
cudaError_t check_range(const void* p, std::size_t bytes);

}  // namespace fake_cuda

#define FAKE_CUDA_CHECK(expression)                                             \
  if (const cudaError_t fake_error = (expression); fake_error != cudaSuccess) { \
    return ::fake_cuda::set_error(fake_error);                                  \
  }
