// What the doors of the operations and build_info need of the devices, in a build with or without
// CUDA.
#pragma once
#include <fp8amp/device.h>

#include <memory>
#include <string>

namespace fp8amp {

// "<path>, version 13.1.0", or why the library is not used. The first call loads the library.
std::string cublaslt_status();
std::string nccl_status();

// Makes the device of an operation's tensors current for a scope; nothing for the CPU.
class ScopedDevice {
 public:
  explicit ScopedDevice(Device device);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fp8amp
