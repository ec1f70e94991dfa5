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
    return library.path() + ", version " + version_string(static_cast<std::size_t>(v));
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace fp8amp::gpu
