// A maximum that threads raise: its value does not depend on their order.
#pragma once
#include <atomic>
#include <cstdint>

namespace fp8amp::kernels::cpu {

class SharedMaximum {
 public:
  void raise(std::uint32_t bits) {
    std::uint32_t seen = bits_.load(std::memory_order_relaxed);
    while (seen < bits && !bits_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }
  std::uint32_t get() const { return bits_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint32_t> bits_{0};
};

}  // namespace fp8amp::kernels::cpu
