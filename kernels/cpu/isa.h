// The loops of the instruction-set level in use.
#pragma once
#include "kernels/cpu/isa/loops.h"

namespace fp8amp::kernels::cpu {

// kBaseline: machines other than x86-64
enum class Isa : std::uint8_t { kBaseline, kV2, kV3, kV4 };

Isa detect_isa();           // the highest level of this machine
Isa isa_in_use();           // lowered by FP8AMP_ISA; decided once
const char* name(Isa isa);  // "v3"
const Loops& loops(Isa isa);
inline const Loops& loops() { return loops(isa_in_use()); }

}  // namespace fp8amp::kernels::cpu
