// The state of a CUDA thread, and what happens when lanes meet in a warp operation.
#pragma once
#include <string>

#include "tests/emulator/cuda_emu.h"
#include "tests/emulator/fiber.h"

namespace emu {

enum class State : std::uint8_t { kReady, kAtBarrier, kInWarpOperation, kExited };

struct Thread : ThreadContext {
  Fiber* fiber;
  State state;
  WarpOperation operation;
  Combine combine;
  bool fenced;              // has called __threadfence
  const void* last_atomic;  // of its atomic operations
  unsigned mask;
  int source;  // lane, of a shuffle
  std::uint64_t value, result;
  Location where;  // of the barrier or warp operation
};

bool same_place(const Thread& a, const Thread& b);
std::string describe(const Thread& thread);

struct GroupState {
  const char* fault = nullptr;
  bool complete = false;  // all lanes of the mask have arrived
  unsigned size = 0;
};
// The group of lane `lane`, which waits in a warp operation. lanes: of this warp, 32 but in a short
// one.
GroupState check_group(const Thread* threads, std::size_t lanes, std::size_t lane);
// Gives each lane of mask its result and lets it run; null or a fault.
const char* complete_group(Thread* threads, std::size_t lanes, unsigned mask);

}  // namespace emu
