// Control of the fake CUDA runtime: host definitions of the functions of cuda_runtime_api.h that a
// backend calls, for tests without a GPU. Device memory is host memory between guard zones. Work
// runs at once, in the call, or is recorded while its stream captures and runs in cudaGraphLaunch.
//
// As the real one it refuses, with the real one's error: allocation, synchronisation and the
// default stream while a stream captures; a stream of another device than the current one; any
// device call without a device; copies and fills beyond a known allocation. Not modelled: work that
// is still under way when a call returns, memory nodes in graphs (cudaMallocAsync while capturing
// is refused), peer access, priorities, host functions.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fake_cuda {

struct Machine {
  int devices = 1;
  cudaError_t count_error = cudaSuccess;  // what cudaGetDeviceCount returns
  int major = 9, minor = 0;               // compute capability
  int multiprocessors = 132;
  int driver_version = 13000;  // 0: no driver
};
// Restores everything: the machine, counters, failures, errors, the current device. Memory, streams
// and events that tests forgot stay counted by leaks() and are given up.
void reset(const Machine& machine = {});

struct Counters {
  std::int64_t launches = 0;  // kernels, in graphs too
  std::int64_t memsets = 0, memset_bytes = 0;
  std::int64_t copies = 0, copy_bytes = 0;
  std::int64_t allocations = 0, allocated_bytes = 0, frees = 0;
  std::int64_t synchronizations = 0;  // of device, stream or event, and copies that wait
  std::int64_t graph_launches = 0;
};
Counters counters();
void reset_counters();
// How often a function of the runtime was called since reset_counters(); "launch": a kernel.
std::int64_t calls(const std::string& function);
// The calls so far, one name each: "cudaMemsetAsync", "launch amax_kernel"... Recorded once this
// was called with true.
void record_calls(bool on);
std::vector<std::string> recorded_calls();

// The n-th call (from 1, counted from now) of a function, "cudaMalloc" or "launch", returns error.
void fail(const std::string& function, int n, cudaError_t error);

// What is alive, e.g. "2 allocations (512 bytes), 1 stream"; empty: nothing.
std::string leaks();
// Allocations whose guard zones were written to; also checked by cudaFree, which then returns
// cudaErrorIllegalAddress. AddressSanitizer reports the access itself.
int damaged_allocations();

}  // namespace fake_cuda
