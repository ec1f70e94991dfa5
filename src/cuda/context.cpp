#include "src/cuda/context.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fp8amp/error.h"
#include "src/cuda/gemm_plan.h"

namespace fp8amp::gpu {
namespace {

constexpr std::size_t kMiB = std::size_t(1) << 20;
constexpr std::size_t kGranularity = 2 * kMiB;  // of cudaMalloc

class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes) : bytes_(bytes) {
    FP8AMP_CUDA_CHECK(cudaMalloc(&data_, bytes));
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory() {
    if (data_) (void)cudaFree(data_);
  }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

[[noreturn]] void refuse_in_capture(const std::string& what) {
  throw Error("gemm: " + what +
              " cannot be allocated inside a stream capture: run the same step once on this stream "
              "before the capture");
}

struct Contexts {
  std::mutex mutex;
  std::map<int, std::unique_ptr<Context>> of_device;
  const CublasLt* table = nullptr;  // of a ContextOverride
  int compute_capability = 0;
};

Contexts& contexts() {
  static Contexts* const all = new Contexts;  // never destroyed, see Context::current
  return *all;
}

}  // namespace

class StreamMemory {
 public:
  StreamMemory(cudaStream_t stream, std::size_t workspace_bytes)
      : stream_(stream), workspace_(workspace_bytes) {}

  std::byte* scratch(std::size_t bytes) {
    const bool capturing = is_capturing(stream_);
    if (bytes > scratch_.bytes()) {
      if (capturing)
        refuse_in_capture(std::to_string(bytes) + " bytes of scratch memory (this stream has " +
                          std::to_string(scratch_.bytes()) + ")");
      grow((bytes + kGranularity - 1) / kGranularity * kGranularity);
    }
    captured_ |= capturing;
    return static_cast<std::byte*>(scratch_.data());
  }

  std::mutex& mutex() { return mutex_; }
  const DeviceMemory& workspace() const { return workspace_; }

 private:
  void grow(std::size_t bytes) {
    DeviceMemory larger(bytes);
    std::swap(larger, scratch_);
    if (captured_) {
      kept_.push_back(std::move(larger));
      captured_ = false;
    } else if (larger.data()) {
      FP8AMP_CUDA_CHECK(cudaStreamSynchronize(stream_));  // kernels may still use what is freed
    }
  }

  std::mutex mutex_;
  cudaStream_t stream_;
  DeviceMemory workspace_, scratch_;
  bool captured_ = false;           // scratch_ is part of a captured graph
  std::vector<DeviceMemory> kept_;  // former scratch memory of captured graphs
};

Lease::Lease(StreamMemory& memory) : memory_(memory), lock_(memory.mutex()) {}
void* Lease::workspace() const { return memory_.workspace().data(); }
std::size_t Lease::workspace_bytes() const { return memory_.workspace().bytes(); }
std::byte* Lease::scratch(std::size_t bytes) { return memory_.scratch(bytes); }

struct Context::Memories {
  std::mutex mutex;
  std::map<cudaStream_t, std::unique_ptr<StreamMemory>> of_stream;
};

Context::Context(const CublasLt& lt, int compute_capability)
    : lt_(lt),
      compute_capability_(compute_capability),
      plans_(std::make_unique<PlanCache>()),
      memories_(std::make_unique<Memories>()) {
  check(lt_, lt_.Create(&handle_), "cublasLtCreate");
}

Context::~Context() {
  plans_.reset();
  if (handle_) (void)lt_.Destroy(handle_);
}

// What NVIDIA recommends for Hopper and later; 4 MiB is enough for what came before.
std::size_t Context::workspace_bytes() const {
  return compute_capability_ >= 90 ? 32 * kMiB : 4 * kMiB;
}

Lease Context::lease(cudaStream_t stream) {
  StreamMemory* found = nullptr;
  {
    const std::lock_guard lock(memories_->mutex);
    std::unique_ptr<StreamMemory>& memory = memories_->of_stream[stream];
    if (!memory) {
      if (is_capturing(stream)) refuse_in_capture("the workspace of this stream");
      memory = std::make_unique<StreamMemory>(stream, workspace_bytes());
    }
    found = memory.get();
  }
  return Lease(*found);  // may wait for another thread: not under the lock of all streams
}

Context& Context::current(cudaStream_t stream) {
  const int device = current_device();
  Contexts& all = contexts();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Context>& context = all.of_device[device];
  if (!context) {
    const int compute_capability =
        all.table ? all.compute_capability : device_facts(device).compute_capability;
    if (compute_capability < 80)
      throw Error("gemm: the GPU must have compute capability 8.0 or higher, got " +
                  version_text(compute_capability));
    if (is_capturing(stream)) refuse_in_capture("the cuBLASLt handle of this device");
    context =
        std::make_unique<Context>(all.table ? *all.table : gpu::cublaslt(), compute_capability);
  }
  return *context;
}

ContextOverride::ContextOverride(const CublasLt& table, int compute_capability) {
  Contexts& all = contexts();
  const std::lock_guard lock(all.mutex);
  all.of_device.clear();
  all.table = &table;
  all.compute_capability = compute_capability;
}

ContextOverride::~ContextOverride() {
  Contexts& all = contexts();
  const std::lock_guard lock(all.mutex);
  all.of_device.clear();
  all.table = nullptr;
}

}  // namespace fp8amp::gpu
