// Device memory that operations use while they run: scratch memory, and a workspace for cuBLASLt.
// It comes from the allocator of set_temporary_memory for the time of one operation, or is of this
// file: for each stream in use.
//
// Streams: memory of this file belongs to a stream, so operations on different streams never share
// any, and operations on one stream follow each other in stream order. A captured graph keeps the
// memory of the stream it was captured on; while it is replayed on another stream, give that stream
// no other operation.
//
// Capture: nothing of this file is allocated inside a stream capture. What is missing there is an
// Error that asks for one run of the same step, on the same stream, before the capture. Memory that
// a captured graph may use is never freed.
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "src/cuda/runtime.h"

namespace fp8amp::gpu {

class StreamMemory;

// Memory of set_temporary_memory's allocator.
struct TemporaryBlock {
  struct Release {
    void (*function)(void*);
    void* owner;
    void operator()(void*) const { function(owner); }
  };
  std::unique_ptr<void, Release> data;  // null where the allocator has none
  std::size_t bytes = 0;
};

// Memory of a stream of the current device until everything that uses it is enqueued. Exclusive
// where it is of this file: host threads that share a stream take turns.
class Lease {
 public:
  explicit Lease(cudaStream_t stream);

  // Device memory, 256-byte aligned. Scratch memory keeps its content until the next lease of this
  // stream: one call per lease.
  std::byte* scratch(std::size_t bytes) const;
  std::byte* workspace(std::size_t bytes) const;

 private:
  StreamMemory& own() const;

  cudaStream_t stream_;
  mutable TemporaryBlock scratch_, workspace_;
  mutable StreamMemory* own_ = nullptr;
  mutable std::unique_lock<std::mutex> lock_;
};

[[noreturn]] void refuse_in_capture(const std::string& what);

// Frees all of it. For tests: nothing may be under way, and no captured graph may be left.
void release_stream_memory();

}  // namespace fp8amp::gpu
