// torch.ops.fp8amp: current_stream; and temporary memory from torch's allocator.
#include <memory>

#include "python/bindings/ops/convert.h"

namespace fp8amp::bindings {
namespace {

constexpr int64_t kCapturing = -1;
constexpr std::size_t kAlignment = 256;

// A number for torch's current stream, 0 on the CPU, -1 while a CUDA graph is captured on it.
int64_t stream_number(std::string device_type, int64_t device_index) {
  const Device on = device(device_type, device_index);
  if (on.type == DeviceType::kCpu) return 0;
  void* const stream = current_stream(on.index);
  return is_capturing(stream) ? kCapturing
                              : static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(stream));
}

// torch gives memory for its current stream: work on another one is not of torch's ops, and has
// the library's own.
void* allocate(std::size_t bytes, int device, void* stream, void** owner) {
  if (stream != current_stream(device)) return nullptr;
  std::size_t space = bytes + kAlignment - 1;  // CPU tensors, on an emulated GPU, have less
  auto* const memory = new TorchTensor(empty_bytes(space, device));
  *owner = memory;
  void* data = memory->mutable_data_ptr();
  return std::align(kAlignment, bytes, data, space);
}
void release(void* owner) { delete static_cast<TorchTensor*>(owner); }

[[maybe_unused]] const bool set = (set_temporary_memory({allocate, release}), true);

STABLE_TORCH_LIBRARY_FRAGMENT(fp8amp, m) {
  m.def("current_stream(str device_type, int device_index) -> int");
}
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CompositeExplicitAutograd, m) {
  m.impl("current_stream", TORCH_BOX(&stream_number));
}

}  // namespace
}  // namespace fp8amp::bindings
