// Many tensors in one launch: the blocks (or chunks) of all stand in one row.
#pragma once
#include "kernels/cuda/portable.cuh"

namespace fp8amp::kernels::cuda {

// The tensor that holds number `number` of the row: first[t] is the first of tensor t, first[count]
// the end. A tensor may have none.
__device__ __forceinline__ int tensor_of(const std::int64_t* first, int count,
                                         std::int64_t number) {
  int low = 0, high = count;  // first[low] <= number < first[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first[middle] <= number)
      low = middle;
    else
      high = middle;
  }
  return low;
}

}  // namespace fp8amp::kernels::cuda
