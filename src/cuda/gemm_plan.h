// A plan: descriptors and algorithm of one MatmulProblem. Finding the algorithm takes tens of
// microseconds and more, so plans are kept, the least recently used ones dropped.
#pragma once
#include <cublasLt.h>

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "src/cuda/cublaslt_matmul.h"

namespace fp8amp::gpu {

template <class Opaque>
using Descriptor = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;

class MatmulPlan {
 public:
  // Asks cuBLASLt for its best algorithm for pointers of these alignments.
  MatmulPlan(Context& context, const MatmulProblem& problem, const MatmulPointers& pointers);

  bool usable() const { return usable_; }  // there is one

  // Enqueues with the plan's algorithm.
  void run(Context& context, const Lease& lease, const MatmulPointers& pointers,
           cudaStream_t stream);
  // Times the `count` best algorithms (on memory of its own, waiting for the stream) and keeps the
  // fastest.
  void tune(Context& context, const Lease& lease, const MatmulPointers& pointers, int count,
            cudaStream_t stream);

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value);
  void set_pointers(const MatmulPointers& pointers);
  void set_scale_modes();
  int find(Context& context, int count, cublasLtMatmulHeuristicResult_t* results) const;
  void enqueue(Context& context, const Lease& lease, const MatmulPointers& pointers,
               const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) const;

  const CublasLt& lt_;
  MatmulProblem problem_;
  Descriptor<cublasLtMatmulDescOpaque_t> operation_;
  Descriptor<cublasLtMatrixLayoutOpaque_t> a_, b_, d_;  // in cuBLASLt's order: a_ is our B
  cublasLtMatmulAlgo_t algorithm_{};
  bool usable_ = false;
  std::mutex mutex_;  // operation_ holds the pointers of the call at hand
};

class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity = 1024) : capacity_(capacity) {}

  struct Counts {
    std::uint64_t hits, misses, dropped;
  };

  // The plan of a problem; `make()` is called without one. Thread-safe.
  template <class Make>
  std::shared_ptr<MatmulPlan> get(const MatmulProblem& problem, Make make) {
    const std::lock_guard lock(mutex_);
    if (std::shared_ptr<MatmulPlan> plan = find(problem)) return plan;
    std::shared_ptr<MatmulPlan> plan = make();
    insert(problem, plan);
    return plan;
  }
  Counts counts() const;

 private:
  struct Hash {
    std::size_t operator()(const MatmulProblem& problem) const;
  };
  using Entry = std::pair<MatmulProblem, std::shared_ptr<MatmulPlan>>;

  std::shared_ptr<MatmulPlan> find(const MatmulProblem& problem);
  void insert(const MatmulProblem& problem, std::shared_ptr<MatmulPlan> plan);

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last used one first
  std::unordered_map<MatmulProblem, std::list<Entry>::iterator, Hash> index_;
  Counts counts_{};
};

}  // namespace fp8amp::gpu
