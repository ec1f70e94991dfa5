// Takes the place of python/bindings/ops/device.cpp: torch's CPU tensors lie on the emulated GPU.
#include "python/bindings/ops/convert.h"
#include "tests/emulator/torch/emulated_gpu.h"

namespace fp8amp::bindings {

Device device(const TorchTensor&) { return cuda(0); }
Device device(const std::string& type, int64_t) { return type == "cpu" ? cuda(0) : kCpu; }
int32_t torch_gpu() { return aoti_torch_device_type_cpu(); }
void* stream(const TorchTensor&) { return emulated_stream(); }
void* current_stream(int) { return emulated_stream(); }

}  // namespace fp8amp::bindings
