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
#include <mutex>
#include <string>

#include "src/cuda/runtime.h"

namespace fp8amp::gpu {

class StreamMemory;

// Memory of set_temporary_memory's allocator.
class TemporaryBlock {
 public:
  TemporaryBlock() = default;
  TemporaryBlock(cudaStream_t stream, std::size_t bytes);  // null where the allocator has none
  TemporaryBlock(TemporaryBlock&& other) noexcept;
  TemporaryBlock& operator=(TemporaryBlock&& other) noexcept;
  ~TemporaryBlock();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void *data_ = nullptr, *owner_ = nullptr;
  void (*release_)(void*) = nullptr;
  std::size_t bytes_ = 0;
};

// A stream's memory until everything that uses it is enqueued. Exclusive where it is of this file:
// host threads that share a stream take turns.
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

// The memory of a stream of the current device.
Lease lease(cudaStream_t stream);

[[noreturn]] void refuse_in_capture(const std::string& what);

// Frees all of it. For tests: nothing may be under way, and no captured graph may be left.
void release_stream_memory();

}  // namespace fp8amp::gpu
