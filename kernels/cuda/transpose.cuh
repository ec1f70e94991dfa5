// A block of 4 x 4 bytes, turned in registers.
#pragma once
#include "kernels/cuda/portable.cuh"

namespace fp8amp::kernels::cuda {

// Four rows of four bytes -> four columns of four bytes.
__device__ __forceinline__ void transpose_bytes(const std::uint32_t (&row)[4],
                                                std::uint32_t (&column)[4]) {
  const std::uint32_t low01 = __byte_perm(row[0], row[1], 0x5140),
                      low23 = __byte_perm(row[2], row[3], 0x5140);
  const std::uint32_t high01 = __byte_perm(row[0], row[1], 0x7362),
                      high23 = __byte_perm(row[2], row[3], 0x7362);
  column[0] = __byte_perm(low01, low23, 0x5410);
  column[1] = __byte_perm(low01, low23, 0x7632);
  column[2] = __byte_perm(high01, high23, 0x5410);
  column[3] = __byte_perm(high01, high23, 0x7632);
}

}  // namespace fp8amp::kernels::cuda
