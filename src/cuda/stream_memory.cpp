#include "src/cuda/stream_memory.h"

#include <fp8amp/device.h>
#include <fp8amp/error.h>

#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace fp8amp::gpu {
namespace {

constexpr std::size_t kGranularity = std::size_t(2) << 20;  // of cudaMalloc

}  // namespace

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
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class StreamMemory {
 public:
  explicit StreamMemory(cudaStream_t stream) : stream_(stream) {}

  std::byte* scratch(std::size_t bytes) { return get(scratch_, bytes, "scratch memory"); }
  std::byte* workspace(std::size_t bytes) { return get(workspace_, bytes, "cuBLASLt workspace"); }
  std::mutex& mutex() { return mutex_; }

 private:
  struct Part {
    DeviceMemory memory;
    bool captured = false;  // in use by a captured graph
  };

  std::byte* get(Part& part, std::size_t bytes, const char* what) {
    const bool capturing = is_capturing(stream_);
    if (bytes > part.memory.bytes()) {
      if (capturing)
        refuse_in_capture(std::to_string(bytes) + " bytes of " + what + " (this stream has " +
                          std::to_string(part.memory.bytes()) + ")");
      grow(part, (bytes + kGranularity - 1) / kGranularity * kGranularity);
    }
    part.captured |= capturing;
    return part.memory.data();
  }

  void grow(Part& part, std::size_t bytes) {
    DeviceMemory old(bytes);
    std::swap(old, part.memory);
    if (part.captured) {
      kept_.push_back(std::move(old));
      part.captured = false;
    } else if (old.data()) {
      FP8AMP_CUDA_CHECK(cudaStreamSynchronize(stream_));  // kernels may still use what is freed
    }
  }

  std::mutex mutex_;
  cudaStream_t stream_;
  Part scratch_, workspace_;
  std::vector<DeviceMemory> kept_;  // former memory of captured graphs
};

namespace {

struct Memories {
  std::mutex mutex;
  // cudaStreamPerThread is a stream of each thread: the thread tells them apart, and is no thread
  // for all others.
  std::map<std::tuple<int, cudaStream_t, std::thread::id>, std::unique_ptr<StreamMemory>> of_stream;
};

// Never destroyed: at exit the driver may be gone before it.
Memories& memories() {
  static Memories* const all = new Memories;
  return *all;
}

StreamMemory& memory_of(cudaStream_t stream) {
  const int device = current_device();
  Memories& all = memories();
  const std::lock_guard lock(all.mutex);
  const std::thread::id thread =
      stream == cudaStreamPerThread ? std::this_thread::get_id() : std::thread::id();
  std::unique_ptr<StreamMemory>& memory = all.of_stream[{device, stream, thread}];
  if (!memory) memory = std::make_unique<StreamMemory>(stream);
  return *memory;
}

std::mutex allocator_mutex;
TemporaryMemory allocator;

TemporaryBlock temporary_block(cudaStream_t stream, std::size_t bytes) {
  TemporaryMemory from;
  {
    const std::lock_guard lock(allocator_mutex);
    from = allocator;
  }
  if (!from.allocate) return {};
  void* owner = nullptr;
  void* const data = from.allocate(bytes, current_device(), stream, &owner);
  return {{data, {from.release, owner}}, bytes};
}

}  // namespace

Lease::Lease(cudaStream_t stream) : stream_(stream) {}

StreamMemory& Lease::own() const {
  if (!own_) {
    own_ = &memory_of(stream_);
    lock_ = std::unique_lock(own_->mutex());
  }
  return *own_;
}
std::byte* Lease::scratch(std::size_t bytes) const {
  scratch_ = temporary_block(stream_, bytes);
  return scratch_.data ? static_cast<std::byte*>(scratch_.data.get()) : own().scratch(bytes);
}
std::byte* Lease::workspace(std::size_t bytes) const {
  if (workspace_.bytes < bytes) workspace_ = temporary_block(stream_, bytes);
  return workspace_.data ? static_cast<std::byte*>(workspace_.data.get()) : own().workspace(bytes);
}

void refuse_in_capture(const std::string& what) {
  throw Error(what +
              " cannot be allocated inside a stream capture: run the same step once on this stream "
              "before the capture");
}

void release_stream_memory() {
  Memories& all = memories();
  const std::lock_guard lock(all.mutex);
  all.of_stream.clear();
}

}  // namespace fp8amp::gpu

namespace fp8amp {

void set_temporary_memory(const TemporaryMemory& memory) {
  const std::lock_guard lock(gpu::allocator_mutex);
  gpu::allocator = memory;
}

}  // namespace fp8amp

namespace fp8amp::kernels::cuda {

Scratch::Scratch(cudaStream_t stream, std::size_t bytes)
    : lease_(std::make_unique<gpu::Lease>(stream)), data_(lease_->scratch(bytes)) {}
Scratch::~Scratch() = default;

}  // namespace fp8amp::kernels::cuda
