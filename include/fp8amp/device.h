// Where a tensor lives. Loading the library needs no driver: without one device_count() is 0 and
// cuda_status() says why.
#pragma once
#include <fp8amp/export.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace fp8amp {

enum class DeviceType : std::uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int32_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};
inline constexpr Device kCpu{DeviceType::kCpu, 0};
constexpr Device cuda(std::int32_t index = 0) { return {DeviceType::kCuda, index}; }

FP8AMP_API bool built_with_cuda();
FP8AMP_API int device_count();         // CUDA devices; never throws
FP8AMP_API std::string cuda_status();  // "ok", or the reason for device_count() == 0

// Whether a CUDA graph is being captured on `stream` (a cudaStream_t of the current device).
FP8AMP_API bool is_capturing(void* stream);

// Where operations on a GPU take the memory that they need while they run: scratch memory of a few
// bytes to a few times their operands, and up to 32 MiB of workspace for cuBLASLt.
struct TemporaryMemory {
  // At least `bytes` on `device`, 256-byte aligned, for work on `stream`; `*owner` is for release.
  // Null: fp8amp allocates for itself. May throw.
  void* (*allocate)(std::size_t bytes, int device, void* stream, void** owner) = nullptr;
  // Called when all that uses the memory has been enqueued on the stream, not when it is done: it
  // may serve later work on the same stream. Must not throw.
  void (*release)(void* owner) = nullptr;
};

// For all operations from now on; {} for the library's own: memory that belongs to a stream, grows
// and is kept. With that, an operation can be captured on a stream only after it ran there once;
// the memory goes into the graph too, so while the graph is replayed on another stream, that stream
// must have no other operation under way. The Python package takes torch's allocator.
FP8AMP_API void set_temporary_memory(const TemporaryMemory& memory);

}  // namespace fp8amp
