// Choice of the instruction-set level. x86-64-v2: SSE4.2; v3: AVX2, FMA, BMI, F16C, LZCNT, MOVBE;
// v4: AVX-512 F, BW, CD, DQ, VL.
#include "kernels/cpu/isa.h"

#include <fp8amp/error.h>

#include <cstdlib>
#include <string>

#ifdef FP8AMP_ISA_LEVELS_X86
#include <cpuid.h>
#endif

namespace fp8amp::kernels::cpu {
namespace {

#define FP8AMP_LOOPS(isa)                                                                          \
  {                                                                                                \
    isa::amax, isa::cast, isa::cast_transpose, isa::dequantize, isa::accumulate,                   \
        isa::sum_of_squares, isa::scale_values, isa::gemm, isa::adam, isa::add_rows, isa::row_sum, \
        isa::row_deviation, isa::fused_row, isa::fused_row_amax, isa::norm_backward_row            \
  }

Isa choose_isa() {
  const Isa available = detect_isa();
  const char* wanted = std::getenv("FP8AMP_ISA");
  if (!wanted || !*wanted || available == Isa::kBaseline) return available;
  for (Isa isa : {Isa::kV2, Isa::kV3, Isa::kV4})
    if (std::string(wanted) == name(isa)) {
      if (isa > available)
        throw Error(std::string("FP8AMP_ISA: this CPU has x86-64-") + name(available) +
                    " at most, got " + wanted);
      return isa;
    }
  throw Error(std::string("FP8AMP_ISA: must be v2, v3 or v4, got ") + wanted);
}

#ifdef FP8AMP_ISA_LEVELS_X86
// Clang 14's __builtin_cpu_supports does not know their names.
bool has_f16c_lzcnt_movbe() {
  unsigned a, b, basic, extended, d;
  return __get_cpuid(1, &a, &b, &basic, &d) && (basic & bit_F16C) && (basic & bit_MOVBE) &&
         __get_cpuid(0x80000001u, &a, &b, &extended, &d) && (extended & bit_LZCNT);
}
#endif

}  // namespace

Isa detect_isa() {
#ifdef FP8AMP_ISA_LEVELS_X86
  __builtin_cpu_init();
  const bool v3 = has_f16c_lzcnt_movbe() && __builtin_cpu_supports("avx2") &&
                  __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? Isa::kV4 : v3 ? Isa::kV3 : Isa::kV2;
#else
  return Isa::kBaseline;
#endif
}

Isa isa_in_use() {
  static const Isa isa = choose_isa();
  return isa;
}

const char* name(Isa isa) {
  switch (isa) {
    case Isa::kV2: return "v2";
    case Isa::kV3: return "v3";
    case Isa::kV4: return "v4";
    default: return "baseline";
  }
}

const Loops& loops(Isa isa) {
#ifdef FP8AMP_ISA_LEVELS_X86
  static constexpr Loops kV2Loops FP8AMP_LOOPS(v2);
  static constexpr Loops kV3Loops FP8AMP_LOOPS(v3);
  static constexpr Loops kV4Loops FP8AMP_LOOPS(v4);
  return isa == Isa::kV4 ? kV4Loops : isa == Isa::kV3 ? kV3Loops : kV2Loops;
#else
  static constexpr Loops kLoops FP8AMP_LOOPS(baseline);
  (void)isa;
  return kLoops;
#endif
}

}  // namespace fp8amp::kernels::cpu
