// Memory, fills and copies of the fake runtime.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/emulator/fake_state.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(p, bytes)
#endif

namespace fake_cuda {
namespace {

constexpr std::size_t kAlign = 256, kGuard = 256;  // cudaMalloc aligns to 256 bytes
constexpr unsigned char kGuardByte = 0xa7, kNewByte = 0xff;

std::size_t padded(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign + kGuard; }

cudaError_t allocate(void** p, std::size_t bytes) {
  if (p == nullptr) return cudaErrorInvalidValue;
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  auto* block = static_cast<char*>(std::aligned_alloc(kAlign, kGuard + padded(bytes)));
  if (block == nullptr) return cudaErrorMemoryAllocation;
  std::memset(block, kGuardByte, kGuard + padded(bytes));
  char* memory = block + kGuard;
  std::memset(memory, kNewByte, bytes);
  ASAN_POISON_MEMORY_REGION(block, kGuard);
  ASAN_POISON_MEMORY_REGION(memory + bytes, padded(bytes) - bytes);
  State& s = state();
  s.allocations[memory] = {bytes, current_device()};
  ++s.counters.allocations;
  s.counters.allocated_bytes += std::int64_t(bytes);
  *p = memory;
  return cudaSuccess;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__)
bool intact(const char* p, std::size_t bytes) {
  const auto is_guard = [](char c) { return static_cast<unsigned char>(c) == kGuardByte; };
  return std::all_of(p - kGuard, p, is_guard) &&
         std::all_of(p + bytes, p + padded(bytes), is_guard);
}
#else
bool intact(const char*, std::size_t) { return true; }  // it does not get that far
#endif

void release_block(char* memory, [[maybe_unused]] std::size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(memory - kGuard, kGuard + padded(bytes));
  std::free(memory - kGuard);
}

cudaError_t free_memory(void* p) {
  if (p == nullptr) return cudaSuccess;
  State& s = state();
  const auto it = s.allocations.find(static_cast<char*>(p));
  if (it == s.allocations.end()) return cudaErrorInvalidValue;
  const bool damaged = !intact(it->first, it->second.bytes);
  release_block(it->first, it->second.bytes);
  s.allocations.erase(it);
  ++s.counters.frees;
  return damaged ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t check_range(const void* p, std::size_t bytes) {
  if (p == nullptr && bytes != 0) return cudaErrorInvalidValue;
  const State& s = state();
  const auto* address = static_cast<const char*>(p);
  auto it = s.allocations.upper_bound(const_cast<char*>(address));
  if (it == s.allocations.begin()) return cudaSuccess;
  --it;
  const char* end = it->first + it->second.bytes;
  if (address >= end) return cudaSuccess;  // memory that did not come from here
  return address + bytes <= end ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT: the definitions below are of the global namespace

cudaError_t cudaMalloc(void** p, size_t bytes) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaMalloc"));
  FAKE_CUDA_CHECK(refuse_while_capturing());
  return set_error(allocate(p, bytes));
}

cudaError_t cudaFree(void* p) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaFree"));
  if (p != nullptr) FAKE_CUDA_CHECK(refuse_while_capturing());
  return set_error(free_memory(p));
}

cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t stream) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaMallocAsync"));
  FAKE_CUDA_CHECK(check_stream(stream));
  if (stream != nullptr && stream->capture != nullptr) FAKE_CUDA_CHECK(refuse_while_capturing());
  return set_error(allocate(p, bytes));
}

cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaFreeAsync"));
  FAKE_CUDA_CHECK(check_stream(stream));
  if (stream != nullptr && stream->capture != nullptr) FAKE_CUDA_CHECK(refuse_while_capturing());
  return set_error(free_memory(p));
}

namespace {

cudaError_t memset_on(void* p, int byte, size_t bytes, cudaStream_t stream) {
  FAKE_CUDA_CHECK(check_stream(stream));
  FAKE_CUDA_CHECK(check_range(p, bytes));
  enqueue(stream, [=] {
    std::memset(p, byte, bytes);
    ++state().counters.memsets;
    state().counters.memset_bytes += std::int64_t(bytes);
  });
  return cudaSuccess;
}

cudaError_t copy_on(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  FAKE_CUDA_CHECK(check_stream(stream));
  FAKE_CUDA_CHECK(check_range(to, bytes));
  FAKE_CUDA_CHECK(check_range(from, bytes));
  enqueue(stream, [=] {
    std::memmove(to, from, bytes);
    ++state().counters.copies;
    state().counters.copy_bytes += std::int64_t(bytes);
  });
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMemsetAsync(void* p, int byte, size_t bytes, cudaStream_t stream) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaMemsetAsync"));
  return memset_on(p, byte, bytes, stream);
}

cudaError_t cudaMemset(void* p, int byte, size_t bytes) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaMemset"));
  FAKE_CUDA_CHECK(refuse_while_capturing());
  return memset_on(p, byte, bytes, nullptr);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaMemcpyAsync"));
  return copy_on(to, from, bytes, stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaMemcpy"));
  FAKE_CUDA_CHECK(refuse_while_capturing());
  ++state().counters.synchronizations;
  return copy_on(to, from, bytes, nullptr);
}
