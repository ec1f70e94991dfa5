// Runs CUDA C++ kernels from their sources on the CPU: each CUDA thread is a fiber, blocks run one
// after the other. kernels/cuda/portable.cuh includes this file where there is no nvcc.
//
// What it checks, beside the results:
//   - divergent or missing __syncthreads, wrong masks of warp operations, lanes that have exited,
//     deadlock, launch configurations, too much shared memory: an emu::Error names kernel, block,
//     threads and source lines
//   - dependence on the order of threads and blocks: run a test under several Options::schedule
//   - shared memory that is read before it is written: it is filled with NaN codes (or, under odd
//     schedules, with 0x7F bytes)
//   - bounds, alignment, shifts, overflow: built with -fsanitize=address,undefined
//   - data races between threads, and between neighbouring blocks: built with -fsanitize=thread.
//     As on a GPU, shuffles and atomics order no memory; __syncthreads, __syncwarp, the end of a
//     kernel do, and so does __threadfence before an atomic write to an atomic read that is
//     followed by __threadfence.
// What it cannot: reorderings of the GPU's memory model in code that ThreadSanitizer accepts,
// blocks that wait for each other, the instructions nvcc generates, time, inline PTX, textures,
// TMA, wgmma, mbarrier, clusters, cooperative groups, __activemask. See device_functions.h for what
// kernels may call.
#pragma once
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__  // g++ knows it as the name of an attribute: __attribute__((__noinline__))
#undef __shared__
#define __shared__ static_assert(false, "use FP8AMP_SHARED or FP8AMP_DYNAMIC_SHARED");

namespace emu {

// A fault of a kernel or of its launch.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  // Order of threads and blocks. 0: forward, warp by warp; 1: backward; others: at random, threads
  // of all warps mixed.
  std::uint64_t schedule = 0;
  // Per block, static and dynamic together. A kernel that needs more must ask the driver.
  std::size_t shared_limit = 48 * 1024;
};
inline thread_local Options options;

// Sets the schedule while it lives.
class Schedule {
 public:
  explicit Schedule(std::uint64_t schedule) : before_(std::exchange(options.schedule, schedule)) {}
  ~Schedule() { options.schedule = before_; }
  Schedule(const Schedule&) = delete;

 private:
  std::uint64_t before_;
};

// Calls test() under forward, backward and `random` random orders.
template <class Test>
void for_each_schedule(Test test, int random = 2) {
  for (int i = 0; i < 2 + random; ++i) {
    Schedule schedule(i);
    test();
  }
}

// What ran on this thread so far.
struct Statistics {
  std::uint64_t launches = 0, blocks = 0, threads = 0, switches = 0, barriers = 0,
                warp_operations = 0;
};
inline thread_local Statistics statistics;

// ---- where a thread is --------------------------------------------------------------------------

struct BlockContext {
  uint3 index;
  dim3 block, grid;
};
struct ThreadContext {
  uint3 index;
  int lane;
  const BlockContext* block;
};
extern thread_local constinit ThreadContext* current;  // null outside kernels

// ---- launches -----------------------------------------------------------------------------------

struct Launch {
  const char* kernel;
  dim3 grid, block;
  std::size_t shared_bytes;
  std::function<void()> thread;  // what one CUDA thread does; holds the kernel's arguments
};
// Runs all blocks, now, or throws Error.
void run(const Launch& launch);
// The same by the rules of a stream (fake_runtime.h): runs it, records it while the stream
// captures, or sets the error that cudaGetLastError returns.
void submit(cudaStream_t stream, Launch launch);

template <class... Parameters, class... Arguments>
void launch(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, void* stream,
            void (*kernel)(Parameters...), Arguments&&... arguments) {
  std::tuple<std::remove_cv_t<Parameters>...> copies(std::forward<Arguments>(arguments)...);
  submit(static_cast<cudaStream_t>(stream),
         {name, grid, block, shared_bytes,
          [kernel, copies = std::move(copies)] { std::apply(kernel, copies); }});
}

// ---- shared memory, barriers, warp operations ---------------------------------------------------

// The block's memory for the variable known by `key`; null: the dynamic shared memory.
void* shared_memory(const void* key, std::size_t bytes);

using Location = std::source_location;
enum class Combine : std::uint8_t { kCount, kAnd, kOr };
int block_barrier(Combine combine, bool predicate, Location where);

enum class WarpOperation : std::uint8_t {
  kSync,
  kShuffle,
  kBallot,
  kAdd,
  kMax,
  kMin,
  kMaxSigned,
  kMinSigned,
  kAnd,
  kOr,
  kXor
};
// Waits for all lanes of mask. Shuffle: the value of lane `source`, or the own one if negative.
std::uint64_t warp_operation(WarpOperation operation, unsigned mask, std::uint64_t value,
                             int source, Location where);

template <class T>
T shuffle(unsigned mask, T value, int source, Location where) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_operation(WarpOperation::kShuffle, mask, bits, source, where);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// For ThreadSanitizer: an atomic operation on p, __threadfence.
void note_atomic(const void* p);
void fence();

[[noreturn]] void trap(Location where);

}  // namespace emu

#define threadIdx (::emu::current->index)
#define blockIdx (::emu::current->block->index)
#define blockDim (::emu::current->block->block)
#define gridDim (::emu::current->block->grid)
#define warpSize 32

#define FP8AMP_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  ::emu::launch(#kernel, (grid), (block), (shared_bytes), (stream),   \
                kernel __VA_OPT__(, ) __VA_ARGS__)
#define FP8AMP_SHARED(T, name, dims) \
  using name##_type = T dims;        \
  static char name##_key;            \
  name##_type& name =                \
      *static_cast<name##_type*>(::emu::shared_memory(&name##_key, sizeof(name##_type)))
#define FP8AMP_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(::emu::shared_memory(nullptr, 0))

#include "tests/emulator/device_functions.h"
