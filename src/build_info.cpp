// Version, build options and what was found at run time.
#include "fp8amp/build_info.h"

#include "fp8amp/parallel.h"
#include "kernels/cpu/isa.h"
#include "src/device.h"

#ifndef FP8AMP_VERSION
#error "FP8AMP_VERSION comes from CMake"
#endif

namespace fp8amp {
namespace {

std::string quote(const std::string& s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "gcc " __VERSION__;
#endif

#ifdef NDEBUG
constexpr const char* kBuildType = "release";
#else
constexpr const char* kBuildType = "debug";
#endif

}  // namespace

const char* version() { return FP8AMP_VERSION; }
const char* isa_level() { return kernels::cpu::name(kernels::cpu::isa_in_use()); }

std::string build_info() {
  return "{\"version\": " + quote(version()) + ", \"compiler\": " + quote(kCompiler) +
         ", \"build_type\": " + quote(kBuildType) + ", \"isa\": " + quote(isa_level()) +
         ", \"isa_available\": " + quote(kernels::cpu::name(kernels::cpu::detect_isa())) +
         ", \"threads\": " + std::to_string(num_threads()) +
         ", \"cuda\": {\"built\": " + (built_with_cuda() ? "true" : "false") +
         ", \"devices\": " + std::to_string(device_count()) +
         ", \"status\": " + quote(cuda_status()) + "}, \"cublaslt\": " + quote(cublaslt_status()) +
         ", \"nccl\": " + quote(nccl_status()) + "}";
}

}  // namespace fp8amp
