// Casts of a range of one row, for cast() and cast_transpose().
#pragma once
#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/simd.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

// Casts n elements from x to y under the policies of `loop` (whose own x, y, n and first are not
// read), and raises the lanes of `max`: bits of |value|. The pointers are arguments, and not a copy
// of the loop, because loads from a struct just written stall.
using CastRange = void (*)(const CastLoop& loop, const void* x, void* y, std::int64_t n,
                           std::uint64_t first, U32& max);
// The cast of the loop's types and policies.
CastRange choose_cast(const CastLoop& loop);

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
