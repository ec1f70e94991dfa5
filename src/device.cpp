// Devices as seen by a build with or without CUDA.
#include "fp8amp/device.h"

#ifdef FP8AMP_HAS_CUDA
#include "src/cuda/runtime.h"
#endif

namespace fp8amp {

#ifdef FP8AMP_HAS_CUDA
bool built_with_cuda() { return true; }
int device_count() { return cuda::device_count(); }
std::string cuda_status() { return cuda::status(); }
#else
bool built_with_cuda() { return false; }
int device_count() { return 0; }
std::string cuda_status() { return "this build of fp8amp has no CUDA backend"; }
#endif

}  // namespace fp8amp
