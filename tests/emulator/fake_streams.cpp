// Streams, events, capture, graphs and kernel launches of the fake runtime.
#include <algorithm>
#include <chrono>

#include "tests/emulator/cuda_emu.h"
#include "tests/emulator/fake_state.h"

namespace fake_cuda {
namespace {

template <class T>
bool known(const std::set<T*>& handles, T* handle) {
  return handles.count(handle) != 0;
}

bool is_capturing(const CUstream_st* stream) { return stream->capture != nullptr; }

double milliseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

}  // namespace

cudaError_t refuse_while_capturing() {
  bool any = false;
  for (CUstream_st* stream : state().streams) {
    if (!is_capturing(stream) || stream->mode == cudaStreamCaptureModeRelaxed) continue;
    stream->capture->invalid = true;
    any = true;
  }
  return any ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t check_stream(cudaStream_t stream) {
  State& s = state();
  if (stream == nullptr) {  // the default stream waits for all others
    const auto it = std::find_if(s.streams.begin(), s.streams.end(), is_capturing);
    if (it == s.streams.end()) return cudaSuccess;
    (*it)->capture->invalid = true;
    return cudaErrorStreamCaptureImplicit;
  }
  if (!known(s.streams, stream)) return cudaErrorInvalidResourceHandle;
  if (stream->device != current_device()) return cudaErrorInvalidResourceHandle;
  if (is_capturing(stream) && stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  return cudaSuccess;
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream != nullptr && is_capturing(stream)) {
    stream->capture->nodes.push_back(std::move(work));
  } else {
    work();
  }
}

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT: the definitions below are of the global namespace

void emu::submit(cudaStream_t stream, Launch launch) {
  const Lock lock(state().mutex);
  cudaError_t error = enter("launch", true, launch.kernel);
  if (error == cudaSuccess) error = check_stream(stream);
  if (set_error(error) != cudaSuccess) return;
  enqueue(stream, [launch = std::move(launch)] {
    ++state().counters.launches;
    run(launch);
  });
}

// ---- streams and events -------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaStreamCreate"));
  *stream = new CUstream_st{.device = current_device()};
  state().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaStreamDestroy"));
  if (state().streams.erase(stream) == 0) return set_error(cudaErrorInvalidResourceHandle);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaStreamSynchronize"));
  if (stream == nullptr || (known(state().streams, stream) && is_capturing(stream))) {
    FAKE_CUDA_CHECK(refuse_while_capturing());
  } else if (!known(state().streams, stream)) {
    return set_error(cudaErrorInvalidResourceHandle);
  }
  ++state().counters.synchronizations;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaStreamQuery"));
  return set_error(check_stream(stream));
}

cudaError_t cudaDeviceSynchronize() {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaDeviceSynchronize"));
  FAKE_CUDA_CHECK(refuse_while_capturing());
  ++state().counters.synchronizations;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaEventCreate"));
  *event = new CUevent_st;
  state().events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaEventDestroy"));
  if (state().events.erase(event) == 0) return set_error(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaEventRecord"));
  FAKE_CUDA_CHECK(check_stream(stream));
  if (!known(state().events, event)) return set_error(cudaErrorInvalidResourceHandle);
  event->capture = stream == nullptr ? nullptr : stream->capture;
  event->milliseconds = milliseconds();
  event->recorded = true;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaStreamWaitEvent"));
  if (!known(state().events, event)) return set_error(cudaErrorInvalidResourceHandle);
  FAKE_CUDA_CHECK(check_stream(stream));
  if (stream != nullptr && event->capture != nullptr) stream->capture = event->capture;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaEventQuery"));
  return set_error(known(state().events, event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaEventSynchronize"));
  if (!known(state().events, event)) return set_error(cudaErrorInvalidResourceHandle);
  if (event->capture != nullptr) FAKE_CUDA_CHECK(refuse_while_capturing());
  ++state().counters.synchronizations;
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* elapsed, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaEventElapsedTime"));
  if (!known(state().events, start) || !known(state().events, end) || !start->recorded ||
      !end->recorded) {
    return set_error(cudaErrorInvalidResourceHandle);
  }
  *elapsed = float(end->milliseconds - start->milliseconds);
  return cudaSuccess;
}

// ---- capture and graphs -------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaStreamBeginCapture"));
  if (stream == nullptr) return set_error(cudaErrorStreamCaptureUnsupported);
  FAKE_CUDA_CHECK(check_stream(stream));
  if (is_capturing(stream)) return set_error(cudaErrorIllegalState);
  stream->capture = new CUgraph_st;
  stream->origin = true;
  stream->mode = mode;
  state().graphs.insert(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(state().mutex);
  *graph = nullptr;
  FAKE_CUDA_CHECK(enter("cudaStreamEndCapture"));
  if (stream == nullptr || !known(state().streams, stream) || !is_capturing(stream)) {
    return set_error(cudaErrorIllegalState);
  }
  if (!stream->origin) return set_error(cudaErrorStreamCaptureUnmatched);
  CUgraph_st* captured = stream->capture;
  for (CUstream_st* each : state().streams) {
    if (each->capture == captured) each->capture = nullptr;
  }
  for (CUevent_st* each : state().events) {
    if (each->capture == captured) each->capture = nullptr;
  }
  stream->origin = false;
  if (captured->invalid) {
    state().graphs.erase(captured);
    delete captured;
    return set_error(cudaErrorStreamCaptureInvalidated);
  }
  *graph = captured;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaStreamIsCapturing"));
  *status = cudaStreamCaptureStatusNone;
  if (stream == nullptr) return set_error(check_stream(stream));
  if (!known(state().streams, stream)) return set_error(cudaErrorInvalidResourceHandle);
  if (is_capturing(stream)) {
    *status = stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaGraphGetNodes", false));
  if (!known(state().graphs, graph)) return set_error(cudaErrorInvalidValue);
  *count = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaGraphInstantiate"));
  if (!known(state().graphs, graph)) return set_error(cudaErrorInvalidValue);
  *executable = new CUgraphExec_st{graph->nodes};
  state().executables.insert(*executable);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaGraphLaunch"));
  if (!known(state().executables, executable)) return set_error(cudaErrorInvalidValue);
  FAKE_CUDA_CHECK(check_stream(stream));
  enqueue(stream, [executable] {
    ++state().counters.graph_launches;
    for (const auto& node : executable->nodes) node();
  });
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaGraphDestroy", false));
  if (state().graphs.erase(graph) == 0) return set_error(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Lock lock(state().mutex);
  FAKE_CUDA_CHECK(enter("cudaGraphExecDestroy", false));
  if (state().executables.erase(executable) == 0) return set_error(cudaErrorInvalidValue);
  delete executable;
  return cudaSuccess;
}
