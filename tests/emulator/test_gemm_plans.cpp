// Around the CUDA GEMM: plans and their cache, memory of streams, captures, failures.
#include <fp8amp/device.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "tests/emulator/gemm_case.h"

namespace fp8amp::gpu {
namespace {

std::string error_of(const kernels::GemmArgs& g) {
  try {
    kernels::cuda::gemm(g);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

PlanCache::Counts counts() { return Context::current(nullptr).plans().counts(); }

TEST(GemmPlans, AreFoundAgain) {
  const FakeGpu gpu(90);
  GemmCase c;
  c.m = 20;
  GemmRun first(c), second(c);
  second.set_scale(3.0f);
  for (int i = 0; i < 3; ++i) {
    kernels::cuda::gemm(first.args());
    kernels::cuda::gemm(second.args());  // other pointers of the same alignment
  }
  EXPECT_EQ(first.differences(first.args()), 0);
  EXPECT_EQ(second.differences(second.args()), 0);
  EXPECT_EQ(counts().misses, 1u);
  EXPECT_EQ(counts().hits, 5u);
  EXPECT_EQ(fake_cublaslt::calls("MatmulAlgoGetHeuristic"), 1);
  std::uint64_t misses = 1;
  const auto expect_new = [&](GemmCase changed) {
    kernels::cuda::gemm(GemmRun(changed).args());
    EXPECT_EQ(counts().misses, ++misses);
  };
  for (auto change :
       {+[](GemmCase& x) { x.m = 21; }, +[](GemmCase& x) { x.n = 32; },
        +[](GemmCase& x) { x.k = 48; }, +[](GemmCase& x) { x.a_type = DType::kE5M2; },
        +[](GemmCase& x) { x.d_type = DType::kFloat32; }, +[](GemmCase& x) { x.with_bias = true; },
        +[](GemmCase& x) { x.accumulate = true; }, +[](GemmCase& x) { x.fast_accumulation = true; },
        +[](GemmCase& x) { x.a_offset = 16; }, +[](GemmCase& x) { x.d_offset = 32; }}) {
    GemmCase changed = c;
    change(changed);
    expect_new(changed);
  }
}

TEST(GemmPlans, LeastRecentlyUsedIsDropped) {
  const FakeGpu gpu(90);
  GemmRun run{GemmCase{}};
  const kernels::GemmArgs g = run.args();
  MatmulProblem p;
  p.m = p.n = p.k = 16;
  p.a.leading_dimension = p.b.leading_dimension = p.d_leading_dimension = 16;
  const MatmulPointers pointers{g.a, g.b, g.a_scale_inv, g.b_scale_inv, g.d, nullptr};
  const auto plan = std::make_shared<MatmulPlan>(Context::current(nullptr), p, pointers);
  PlanCache cache(3);
  const auto get = [&](std::int64_t m) {
    const std::uint64_t misses = cache.counts().misses;
    p.m = m;
    cache.get(p, [&] { return plan; });
    return cache.counts().misses == misses;  // it was there
  };
  for (int m : {1, 2, 3}) EXPECT_FALSE(get(m));
  EXPECT_TRUE(get(1));
  EXPECT_FALSE(get(4));  // drops 2
  for (int m : {1, 3, 4}) EXPECT_TRUE(get(m));
  EXPECT_FALSE(get(2));
  EXPECT_EQ(cache.counts().dropped, 2u);
  EXPECT_EQ(cache.counts().hits, 4u);
}

TEST(GemmPlans, TuningTakesTheFastestAndLeavesTheOutput) {
  const FakeGpu gpu(90);
  GemmCase c;
  c.accumulate = true;
  GemmRun run(c);
  const kernels::GemmArgs g = run.args();
  Context& context = Context::current(nullptr);
  const Lease lease(nullptr);
  lease.workspace(context.workspace_bytes());
  MatmulProblem p;
  p.m = p.n = p.k = 16;
  p.a.leading_dimension = p.b.leading_dimension = p.d_leading_dimension = 16;
  p.d_type = CUDA_R_16BF;
  p.accumulate = true;
  const MatmulPointers pointers{g.a, g.b, g.a_scale_inv, g.b_scale_inv, g.d, nullptr};
  MatmulPlan plan(context, p, pointers);
  fake_cublaslt::set_duration(0, 8);
  fake_cublaslt::set_duration(2, 4);
  const std::int64_t before = fake_cuda::counters().allocations - fake_cuda::counters().frees;
  plan.tune(context, lease, pointers, 3, nullptr);
  EXPECT_EQ(fake_cuda::counters().allocations - fake_cuda::counters().frees, before);
  plan.run(context, lease, pointers, nullptr);
  EXPECT_EQ(fake_cublaslt::products().back().algorithm, 1);
  EXPECT_EQ(run.differences(g), 0);
}

class Stream {
 public:
  Stream() { FP8AMP_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

TEST(GemmStreams, ShareNoMemory) {
  const FakeGpu gpu(90);
  const Stream first, second;
  std::set<void*> memory;
  for (cudaStream_t stream : {cudaStream_t(first), cudaStream_t(second), cudaStream_t(nullptr)}) {
    const Lease lease(stream);
    memory.insert(lease.workspace(100));
    memory.insert(lease.scratch(100));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lease.workspace(100)) % 256, 0u);
  }
  EXPECT_EQ(memory.size(), 6u);
}

TEST(GemmStreams, MayBeSharedByThreads) {
  const FakeGpu gpu(90);
  const Stream stream;
  constexpr int kThreads = 4;
  std::vector<std::unique_ptr<GemmRun>> runs;
  for (int i = 0; i < kThreads; ++i) {
    GemmCase c;
    c.n = 20 + i % 2;  // both padded to 32 in scratch memory: one plan
    runs.push_back(std::make_unique<GemmRun>(c));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      for (int repeat = 0; repeat < 5; ++repeat) kernels::cuda::gemm(runs[i]->args(stream));
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& run : runs) EXPECT_EQ(run->differences(run->args()), 0);
  EXPECT_EQ(counts().misses, 1u);
  EXPECT_EQ(counts().hits, std::uint64_t(kThreads * 5 - 1));
}

TEST(GemmStreams, ScratchGrowsAndIsFreed) {
  const FakeGpu gpu(90);
  const std::int64_t before = fake_cuda::counters().allocations;
  for (std::size_t bytes : {100u, 5u << 20, 1000u, 9u << 20}) Lease(nullptr).scratch(bytes);
  EXPECT_EQ(fake_cuda::counters().allocations - before, 3);
  EXPECT_EQ(fake_cuda::counters().frees, 2);
}

struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ~Graph() {
    (void)cudaGraphExecDestroy(executable);
    (void)cudaGraphDestroy(graph);
  }
};

// Captures the product into `graph`; its error, if there is one.
std::string capture(cudaStream_t stream, const kernels::GemmArgs& args, Graph& graph) {
  FP8AMP_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_TRUE(fp8amp::is_capturing(stream));
  const std::string error = error_of(args);
  FP8AMP_CUDA_CHECK(cudaStreamEndCapture(stream, &graph.graph));
  EXPECT_FALSE(fp8amp::is_capturing(stream));
  return error;
}

TEST(GemmCapture, WorksOnAWarmStreamAndIsRefusedOnAColdOne) {
  const FakeGpu gpu(90);
  const Stream stream;
  GemmCase c;
  c.n = 33;  // scratch memory
  GemmRun run(c);
  const kernels::GemmArgs g = run.args(stream);
  Graph cold, warm, larger;
  const std::string error = capture(stream, g, cold);
  EXPECT_NE(error.find("inside a stream capture: run the same step once"), std::string::npos);
  kernels::cuda::gemm(g);
  run.restore();
  EXPECT_EQ(capture(stream, g, warm), "");
  FP8AMP_CUDA_CHECK(cudaGraphInstantiate(&warm.executable, warm.graph, 0));

  GemmCase big = c;
  big.m = 2000;
  big.n = 513;
  GemmRun big_run(big);
  EXPECT_NE(capture(stream, big_run.args(stream), larger).find("bytes of scratch memory"),
            std::string::npos);
  const std::int64_t frees = fake_cuda::counters().frees;
  Lease(stream).scratch(40 << 20);                // outside: grows
  EXPECT_EQ(fake_cuda::counters().frees, frees);  // the graph's memory stays
  FP8AMP_CUDA_CHECK(cudaGraphLaunch(warm.executable, stream));
  EXPECT_EQ(run.differences(g), 0);
}

// An allocator that counts, as torch's is called.
struct CountingAllocator {
  CountingAllocator() {
    blocks() = {}, served = 0;
    set_temporary_memory({allocate, release});
  }
  ~CountingAllocator() { set_temporary_memory({}); }

  static std::map<void*, std::vector<std::byte>>& blocks() {
    static std::map<void*, std::vector<std::byte>> all;
    return all;
  }
  static void* allocate(std::size_t bytes, int device, void* stream, void** owner) {
    if (device != 0 || stream == nullptr) return nullptr;  // not its own
    ++served;
    std::vector<std::byte> block(bytes + 256);
    void* data = block.data();
    std::size_t space = block.size();
    data = std::align(256, bytes, data, space);
    *owner = block.data();
    blocks()[*owner] = std::move(block);
    return data;
  }
  static void release(void* owner) {
    EXPECT_EQ(blocks().count(owner), 1u);
    kept.push_back(owner);
  }

  static inline int served = 0;
  static inline std::vector<void*> kept;  // released; a graph may replay over it
};

TEST(TemporaryMemory, IsTheCallersForOneOperation) {
  const FakeGpu gpu(90);
  const Stream stream;
  GemmCase c;
  c.n = 33;  // scratch memory
  GemmRun run(c);
  const std::int64_t before = fake_cuda::counters().allocations;
  {
    const CountingAllocator allocator;
    CountingAllocator::kept.clear();
    Graph graph;
    gpu::Context::current(nullptr);  // the handle of cuBLASLt cannot be made in a capture
    EXPECT_EQ(capture(stream, run.args(stream), graph), "");  // on a stream that never ran one
    EXPECT_EQ(CountingAllocator::served, 2);
    EXPECT_EQ(CountingAllocator::kept.size(), 2u);
    FP8AMP_CUDA_CHECK(cudaGraphInstantiate(&graph.executable, graph.graph, 0));
    FP8AMP_CUDA_CHECK(cudaGraphLaunch(graph.executable, stream));
    EXPECT_EQ(run.differences(run.args(stream)), 0);
    EXPECT_EQ(fake_cuda::counters().allocations, before);
    kernels::cuda::gemm(run.args(nullptr));  // a stream that the allocator does not serve
    EXPECT_EQ(CountingAllocator::served, 2);
    EXPECT_EQ(fake_cuda::counters().allocations, before + 2);
  }
  kernels::cuda::gemm(run.args(stream));
  EXPECT_EQ(CountingAllocator::served, 2);
  EXPECT_EQ(fake_cuda::counters().allocations, before + 4);
}

TEST(GemmFailures, EveryCallOfCublasLtMayFail) {
  GemmCase c;
  c.with_bias = true;
  int failures = 0;
  for (int call = 1;; ++call, ++failures) {
    const int baseline = fake_cublaslt::alive();
    bool failed = false;
    {
      const FakeGpu gpu(90);
      GemmRun run(c);
      fake_cublaslt::fail_call(call);
      const std::string error = error_of(run.args());
      failed = fake_cublaslt::failed();
      fake_cublaslt::fail_call(0);
      EXPECT_EQ(failed, error.find("cublasLt") == 0 && error.find("fake status") != error.npos)
          << "call " << call << ": " << error;
      EXPECT_EQ(error_of(run.args()), "") << "after the failure of call " << call;
      EXPECT_EQ(run.differences(run.args()), 0);
    }
    EXPECT_EQ(fake_cublaslt::alive(), baseline) << "call " << call;
    EXPECT_EQ(fake_cuda::leaks(), "") << "call " << call;
    if (!failed) break;
  }
  EXPECT_GT(failures, 15);
}

TEST(GemmFailures, EveryCallOfTheRuntimeMayFail) {
  GemmCase c;
  c.n = 33;
  const struct {
    const char* function;
    int count;
  } calls[] = {
      {"cudaGetDevice", 2}, {"cudaMalloc", 2}, {"launch", 2}, {"cudaStreamIsCapturing", 4}};
  for (const auto& [function, count] : calls)
    for (int n = 1; n <= count; ++n) {
      {
        const FakeGpu gpu(90);
        GemmRun run(c);
        fake_cuda::fail(function, n, cudaErrorUnknown);
        const std::string error = error_of(run.args());
        EXPECT_NE(error.find("cudaErrorUnknown"), std::string::npos) << function << ": " << error;
        run.restore();
        EXPECT_EQ(error_of(run.args()), "");
        EXPECT_EQ(run.differences(run.args()), 0) << function;
      }
      EXPECT_EQ(fake_cuda::leaks(), "");
    }
}

TEST(GemmFailures, NoAlgorithmSaysForWhat) {
  const FakeGpu gpu(90);
  fake_cublaslt::reset(80);  // the library knows better than our rules
  const std::string error = error_of(GemmRun(GemmCase{}).args());
  EXPECT_NE(error.find("has no algorithm for [16, 16] float8_e4m3 x [16, 16] float8_e4m3"),
            std::string::npos)
      << error;
}

}  // namespace
}  // namespace fp8amp::gpu
