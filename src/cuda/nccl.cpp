#include "src/cuda/nccl.h"

#include "fp8amp/error.h"
#include "src/cuda/dynamic_library.h"

namespace fp8amp::gpu {

std::string nccl_status() {
  try {
    const DynamicLibrary library("libnccl.so.2", "FP8AMP_NCCL");
    const auto get_version = reinterpret_cast<int (*)(int*)>(library.symbol("ncclGetVersion"));
    int v = 0;
    if (const int result = get_version(&v); result != 0)
      return library.path() + ": ncclGetVersion returned " + std::to_string(result);
    // NCCL 2.9 and later: major * 10000 + minor * 100 + patch
    return library.path() + ", version " + std::to_string(v / 10000) + "." +
           std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace fp8amp::gpu
