// The one GPU of the emulated torch ops.
#pragma once
#include <torch/csrc/stable/library.h>

// Stands for aoti_torch_empty_strided in the ops. Memory that is taken while the stream captures is
// kept as long as the graph, as torch's allocator does with the private pool of a CUDA graph.
extern "C" AOTITorchError emulated_empty_strided(int64_t ndim, const int64_t* sizes,
                                                 const int64_t* strides, int32_t dtype,
                                                 int32_t device_type, int32_t device_index,
                                                 AtenTensorHandle* result);

namespace fp8amp::bindings {
void* emulated_stream();
}
