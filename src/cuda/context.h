// What fp8amp keeps on a device for its matrix products: a cuBLASLt handle and the plans.
#pragma once
#include <cstddef>
#include <memory>

#include "src/cuda/cublaslt.h"
#include "src/cuda/stream_memory.h"

namespace fp8amp::gpu {

class PlanCache;

class Context {
 public:
  // Of the current device; made by the first call, which must not be inside a capture of `stream`.
  // Never freed: at exit the driver may be gone before it.
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

 private:
  const CublasLt& lt_;
  int compute_capability_;
  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<PlanCache> plans_;
};

// 10 * major + minor of the current device.
int compute_capability();

// For tests: while it lives, contexts are made with this table, and of this compute capability.
// Contexts and memory of streams are released at its begin and end.
class ContextOverride {
 public:
  ContextOverride(const CublasLt& table, int compute_capability);
  ~ContextOverride();
  ContextOverride(const ContextOverride&) = delete;
  ContextOverride& operator=(const ContextOverride&) = delete;
};

}  // namespace fp8amp::gpu
