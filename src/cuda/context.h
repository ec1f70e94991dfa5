// What fp8amp keeps on a device: a cuBLASLt handle, its plans, and for each stream in use a
// workspace for cuBLASLt and scratch memory for padded operands.
//
// Streams: memory belongs to a stream, so operations on different streams never share any, and
// operations on one stream follow each other in stream order. The lease of a stream's memory is
// held while an operation is enqueued: host threads that share a stream take turns. A captured
// graph keeps the memory of the stream it was captured on; while it is replayed on another stream,
// give that stream no other GEMM.
//
// Capture: nothing is allocated inside a stream capture. What is missing there is an Error that
// asks for one run of the same step, on the same stream, before the capture. Memory that a captured
// graph may use is never freed.
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>

#include "src/cuda/cublaslt.h"
#include "src/cuda/runtime.h"

namespace fp8amp::gpu {

class PlanCache;
class StreamMemory;

// Exclusive use of a stream's memory, until everything that uses it is enqueued.
class Lease {
 public:
  explicit Lease(StreamMemory& memory);
  void* workspace() const;
  std::size_t workspace_bytes() const;
  // `bytes` of device memory, 256-byte aligned; its content is valid until the next lease of this
  // stream. One call per lease.
  std::byte* scratch(std::size_t bytes);

 private:
  StreamMemory& memory_;
  std::unique_lock<std::mutex> lock_;
};

class Context {
 public:
  // Of the current device; made by the first call, which must not be inside a capture of `stream`.
  // Never freed: an atexit order in which the driver is still up does not exist.
  static Context& current(cudaStream_t stream);

  Context(const CublasLt& lt, int compute_capability);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const CublasLt& cublaslt() const { return lt_; }
  cublasLtHandle_t handle() const { return handle_; }
  int compute_capability() const { return compute_capability_; }
  std::size_t workspace_bytes() const;
  PlanCache& plans() { return *plans_; }
  Lease lease(cudaStream_t stream);

 private:
  struct Memories;
  const CublasLt& lt_;
  int compute_capability_;
  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<PlanCache> plans_;
  std::unique_ptr<Memories> memories_;
};

// For tests: while it lives, contexts are made with this table, and of this compute capability.
// Contexts made before and during its life are destroyed at its begin and end.
class ContextOverride {
 public:
  ContextOverride(const CublasLt& table, int compute_capability);
  ~ContextOverride();
  ContextOverride(const ContextOverride&) = delete;
  ContextOverride& operator=(const ContextOverride&) = delete;
};

}  // namespace fp8amp::gpu
