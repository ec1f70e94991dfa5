// torch.ops.fp8amp_emulator: what the emulated GPU was asked to do, and captured graphs.
#include "tests/emulator/torch/emulated_gpu.h"

#include <torch/csrc/stable/tensor.h>

#include <map>
#include <sstream>
#include <vector>

#include "fp8amp/error.h"
#include "src/cuda/context.h"
#include "tests/emulator/fake_cublaslt.h"
#include "tests/emulator/fake_runtime.h"

namespace fp8amp::bindings {
namespace {

constexpr int kHopper = 90;

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorName(error));
}

struct Graph {
  cudaGraphExec_t executable = nullptr;
  std::vector<torch::stable::Tensor> memory;
};

struct EmulatedGpu {
  EmulatedGpu() {
    fake_cublaslt::reset(kHopper);
    context = std::make_unique<gpu::ContextOverride>(fake_cublaslt::table(), kHopper);
    check(cudaStreamCreate(&stream), "cudaStreamCreate");
  }

  std::unique_ptr<gpu::ContextOverride> context;
  cudaStream_t stream = nullptr;
  std::map<int64_t, Graph> graphs;
  Graph* capturing = nullptr;
};

EmulatedGpu& emulated_gpu() {
  static EmulatedGpu* const gpu = new EmulatedGpu;  // never destroyed: nothing outlives it
  return *gpu;
}

// JSON; "calls" are the names of the runtime's calls in their order.
std::string activity() {
  const fake_cuda::Counters c = fake_cuda::counters();
  std::ostringstream text;
  text << "{\"launches\": " << c.launches << ", \"memsets\": " << c.memsets
       << ", \"copies\": " << c.copies << ", \"allocations\": " << c.allocations
       << ", \"frees\": " << c.frees << ", \"synchronizations\": " << c.synchronizations
       << ", \"graph_launches\": " << c.graph_launches
       << ", \"products\": " << fake_cublaslt::products().size() << ", \"calls\": [";
  const char* separator = "";
  for (const std::string& call : fake_cuda::recorded_calls()) {
    text << separator << '"' << call << '"';
    separator = ", ";
  }
  text << "]}";
  return text.str();
}

void reset_activity() {
  emulated_gpu();
  fake_cuda::reset_counters();
  fake_cuda::record_calls(true);
}

int64_t begin_capture() {
  EmulatedGpu& gpu = emulated_gpu();
  check(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  const auto id = static_cast<int64_t>(gpu.graphs.size());
  gpu.capturing = &gpu.graphs[id];
  return id;
}

void end_capture() {
  EmulatedGpu& gpu = emulated_gpu();
  Graph& graph = *gpu.capturing;
  gpu.capturing = nullptr;
  cudaGraph_t recorded = nullptr;
  check(cudaStreamEndCapture(gpu.stream, &recorded), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&graph.executable, recorded, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(recorded), "cudaGraphDestroy");
}

void replay(int64_t id) {
  EmulatedGpu& gpu = emulated_gpu();
  check(cudaGraphLaunch(gpu.graphs.at(id).executable, gpu.stream), "cudaGraphLaunch");
}

STABLE_TORCH_LIBRARY(fp8amp_emulator, m) {
  m.def("activity() -> str");
  m.def("reset_activity() -> ()");
  m.def("begin_capture() -> int");
  m.def("end_capture() -> ()");
  m.def("replay(int graph) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(fp8amp_emulator, CompositeExplicitAutograd, m) {
  m.impl("activity", TORCH_BOX(&activity));
  m.impl("reset_activity", TORCH_BOX(&reset_activity));
  m.impl("begin_capture", TORCH_BOX(&begin_capture));
  m.impl("end_capture", TORCH_BOX(&end_capture));
  m.impl("replay", TORCH_BOX(&replay));
}

}  // namespace

void* emulated_stream() { return emulated_gpu().stream; }

}  // namespace fp8amp::bindings

extern "C" AOTITorchError emulated_empty_strided(int64_t ndim, const int64_t* sizes,
                                                 const int64_t* strides, int32_t dtype,
                                                 int32_t device_type, int32_t device_index,
                                                 AtenTensorHandle* result) {
  const AOTITorchError error =
      aoti_torch_empty_strided(ndim, sizes, strides, dtype, device_type, device_index, result);
  auto* graph = fp8amp::bindings::emulated_gpu().capturing;
  if (error != AOTI_TORCH_SUCCESS || !graph) return error;
  AtenTensorHandle kept = nullptr;
  const AOTITorchError second = aoti_torch_new_tensor_handle(*result, &kept);
  if (second == AOTI_TORCH_SUCCESS) graph->memory.emplace_back(kept);
  return second;
}
