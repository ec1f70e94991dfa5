// The last, incomplete group of an array: a loop runs over whole groups, then once more over a
// padded copy of the rest. So it reads and writes nothing beyond the end, has one body, and gives
// the same bits at any length and alignment. (The copies stay out of the loop: calls in it would
// take the vector registers away.)
#pragma once
#include "kernels/cpu/isa/simd.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

// A call of the library's: within known small bounds GCC would write `rep movs`, which takes longer
// to start than the copy lasts.
[[gnu::noinline]] inline void copy_bytes(void* to, const void* from, std::size_t n) {
  std::memcpy(to, from, n);
}

// run(x, y) on kGroup elements: n < kGroup elements of x and y, then zeros. What it leaves in y is
// copied back.
template <int kSizeX, int kSizeY, class Run>
inline void with_padding(const void* x, void* y, std::int64_t n, Run run) {
  alignas(64) char bx[kGroup * kSizeX] = {}, by[kGroup * kSizeY] = {};
  copy_bytes(bx, x, std::size_t(n) * kSizeX);
  copy_bytes(by, y, std::size_t(n) * kSizeY);
  run(bx, by);
  copy_bytes(y, by, std::size_t(n) * kSizeY);
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
