// Selects the executor of the kernels: nvcc and a GPU, or g++ and the emulator of tests/emulator,
// which runs the same sources thread by thread on the CPU. The only file that asks for the
// compiler.
//
//   FP8AMP_LAUNCH(kernel, grid, block, shared_bytes, stream, args...)
//       Arguments by value. A template with a comma in its name goes in parentheses:
//       FP8AMP_LAUNCH((quantize_kernel<E4M3, 256>), grid, 256, 0, args.stream, x, y, n);
//       `stream` may be a void*. FP8AMP_CUDA_CHECK(cudaGetLastError()) comes after it.
//   FP8AMP_SHARED(T, name, dims)      static shared memory: FP8AMP_SHARED(float, tile, [64][17]);
//   FP8AMP_DYNAMIC_SHARED(T, name)    T* name = the launch's dynamic shared memory, 16-byte aligned
//
// Host code in src/cuda includes cuda_runtime_api.h and not this file.
#pragma once

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#define FP8AMP_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  kernel<<<(grid), (block), (shared_bytes), static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__)
#define FP8AMP_SHARED(T, name, dims) __shared__ T name dims
#define FP8AMP_DYNAMIC_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char fp8amp_dynamic_shared[]; \
  T* name = reinterpret_cast<T*>(fp8amp_dynamic_shared)
#else
#include "tests/emulator/cuda_emu.h"
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
