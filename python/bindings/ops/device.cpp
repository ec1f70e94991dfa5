// Devices and streams of torch's tensors.
#include <dlfcn.h>

#include "python/bindings/ops/convert.h"

namespace fp8amp::bindings {

Device device(const TorchTensor& t) { return t.is_cuda() ? cuda(t.get_device_index()) : kCpu; }

Device device(const std::string& type, int64_t index) {
  return type == "cuda" ? cuda(static_cast<int>(index)) : kCpu;
}

int32_t torch_gpu() { return aoti_torch_device_type_cuda(); }

void* stream(const TorchTensor& t) {
  return t.is_cuda() ? current_stream(t.get_device_index()) : nullptr;
}

void* current_stream(int device_index) {
  // The shim lives in libtorch_cuda.so, which CPU builds of torch do not have: looked up, not
  // linked.
  using Shim = AOTITorchError (*)(int32_t, void**);
  static const Shim shim = [] {
    void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return torch_cuda
               ? reinterpret_cast<Shim>(dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream"))
               : nullptr;
  }();
  void* stream = nullptr;
  if (!shim || shim(device_index, &stream) != AOTI_TORCH_SUCCESS)
    throw Error("fp8amp: this torch has no CUDA streams");
  return stream;
}

}  // namespace fp8amp::bindings
