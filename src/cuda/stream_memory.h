// Device memory that operations use while they run: for each stream in use scratch memory and a
// workspace for cuBLASLt.
//
// Streams: memory belongs to a stream, so operations on different streams never share any, and
// operations on one stream follow each other in stream order. A captured graph keeps the memory of
// the stream it was captured on; while it is replayed on another stream, give that stream no other
// operation.
//
// Capture: nothing is allocated inside a stream capture. What is missing there is an Error that
// asks for one run of the same step, on the same stream, before the capture. Memory that a captured
// graph may use is never freed.
#pragma once
#include <cstddef>
#include <mutex>
#include <string>

#include "src/cuda/runtime.h"

namespace fp8amp::gpu {

class StreamMemory;

// Exclusive use of a stream's memory until everything that uses it is enqueued: host threads that
// share a stream take turns.
class Lease {
 public:
  explicit Lease(StreamMemory& memory);

  // Device memory, 256-byte aligned. Scratch memory keeps its content until the next lease of this
  // stream: one call per lease.
  std::byte* scratch(std::size_t bytes) const;
  std::byte* workspace(std::size_t bytes) const;

 private:
  StreamMemory& memory_;
  std::unique_lock<std::mutex> lock_;
};

// The memory of a stream of the current device.
Lease lease(cudaStream_t stream);

[[noreturn]] void refuse_in_capture(const std::string& what);

// Frees all of it. For tests: nothing may be under way, and no captured graph may be left.
void release_stream_memory();

}  // namespace fp8amp::gpu
