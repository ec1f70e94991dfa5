// Where a tensor lives. Loading the library needs no driver: without one device_count() is 0 and
// cuda_status() says why.
#pragma once
#include <fp8amp/export.h>

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

}  // namespace fp8amp
