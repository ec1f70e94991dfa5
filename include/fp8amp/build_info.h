// What this build is and what it found at run time.
#pragma once
#include <fp8amp/export.h>

#include <string>

namespace fp8amp {

FP8AMP_API const char* version();     // "0.1.0"
FP8AMP_API std::string build_info();  // one JSON object: version, compiler, build type, isa,
                                      // isa_available, threads, cuda, cublaslt, nccl

// The instruction-set level of the CPU kernels: "v2", "v3" or "v4" (x86-64 levels), or "baseline"
// on other machines. The highest one that the machine has; the environment variable FP8AMP_ISA (v2,
// v3, v4) lowers it, for tests. Results are equal at every level.
FP8AMP_API const char* isa_level();

}  // namespace fp8amp
