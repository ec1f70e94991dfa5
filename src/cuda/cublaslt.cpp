#include "src/cuda/cublaslt.h"

#include "fp8amp/error.h"
#include "src/cuda/dynamic_library.h"

namespace fp8amp::gpu {

CublasLt load_cublaslt() {
  const DynamicLibrary library("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR),
                               "FP8AMP_CUBLASLT");
  CublasLt lt;
  lt.path = library.path();
#define F(name) lt.name = reinterpret_cast<decltype(lt.name)>(library.symbol("cublasLt" #name));
  FP8AMP_CUBLASLT_FUNCTIONS(F)
#undef F
  return lt;
}

const CublasLt& cublaslt() {
  static const CublasLt table = load_cublaslt();
  return table;
}

std::string cublaslt_status() {
  try {
    return cublaslt().path + ", version " + version_string(cublaslt().GetVersion());
  } catch (const Error& e) {
    return e.what();
  }
}

void check(const CublasLt& lt, cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(std::string(call) + " failed: " + lt.GetStatusString(status) + " (" +
              std::to_string(static_cast<int>(status)) + "), " +
              (lt.path.empty() ? "cuBLASLt" : lt.path) + " " + version_string(lt.GetVersion()));
}

}  // namespace fp8amp::gpu
