// Timing of a plan's candidate algorithms, off by default.
#include <limits>
#include <vector>

#include "src/cuda/gemm_plan.h"

namespace fp8amp::gpu {
namespace {

constexpr int kRuns = 5;

class Event {
 public:
  Event() { FP8AMP_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Output of the timed runs: D itself must not change.
class Output {
 public:
  explicit Output(std::size_t bytes) { FP8AMP_CUDA_CHECK(cudaMalloc(&data_, bytes)); }
  ~Output() { (void)cudaFree(data_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace

void MatmulPlan::tune(Context& context, const Lease& lease, const MatmulPointers& pointers,
                      int count, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(static_cast<std::size_t>(count));
  candidates.resize(static_cast<std::size_t>(find(context, count, candidates.data())));
  const Output output(static_cast<std::size_t>(problem_.m * problem_.d_leading_dimension) *
                      size_of(problem_.d_type));
  MatmulPointers timed = pointers;
  timed.d = output.data();
  set_pointers(timed);
  const Event begin, end;
  float least = std::numeric_limits<float>::infinity();
  for (const auto& candidate : candidates) {
    enqueue(context, lease, timed, candidate.algo, stream);  // the first run loads the kernel
    FP8AMP_CUDA_CHECK(cudaEventRecord(begin.get(), stream));
    for (int run = 0; run < kRuns; ++run) enqueue(context, lease, timed, candidate.algo, stream);
    FP8AMP_CUDA_CHECK(cudaEventRecord(end.get(), stream));
    FP8AMP_CUDA_CHECK(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    FP8AMP_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (milliseconds >= least) continue;
    least = milliseconds;
    algorithm_ = candidate.algo;
  }
}

}  // namespace fp8amp::gpu
