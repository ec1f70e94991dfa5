// Launches, and what kernels call: the way into the scheduler. Compiled as it is, see machine.cpp.
#include "tests/emulator/cuda_emu.h"

#include <string>

#include "tests/emulator/machine.h"

namespace emu {

thread_local constinit Machine* machine = nullptr;

namespace {

thread_local std::unique_ptr<Machine> machine_owner;

void check_configuration(const Launch& launch) {
  const dim3 g = launch.grid, b = launch.block;
  const std::size_t threads = std::size_t(b.x) * b.y * b.z;
  const char* fault = nullptr;
  if (b.x > 1024 || b.y > 1024 || b.z > 64) fault = "a block is at most 1024 x 1024 x 64";
  if (threads == 0 || threads > kMaxThreads) fault = "a block has 1 to 1024 threads";
  if (g.x == 0 || g.y == 0 || g.z == 0) fault = "the grid is empty";
  if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
    fault = "a grid is at most 2^31-1 x 65535 x 65535";
  if (launch.shared_bytes > options.shared_limit) fault = "too much dynamic shared memory";
  if (current != nullptr) fault = "a kernel launches a kernel";
  if (fault == nullptr) return;
  throw Error(std::string("invalid launch of kernel ") + launch.kernel + ": " + fault +
              ", got grid " + text({g.x, g.y, g.z}) + ", block " + text({b.x, b.y, b.z}) + ", " +
              std::to_string(launch.shared_bytes) + " bytes of shared memory");
}

}  // namespace

void run(const Launch& launch) {
  check_configuration(launch);
  if (machine == nullptr) {
    machine_owner = std::make_unique<Machine>();
    machine = machine_owner.get();
  }
  try {
    machine->run(launch);
  } catch (...) {
    current = nullptr;
    machine = nullptr;
    machine_owner.reset();  // its fibers stand in the middle of a kernel
    throw;
  }
  current = nullptr;
}

void* shared_memory(const void* key, std::size_t bytes) {
  SharedArena& shared = machine->shared();
  if (key == nullptr) return shared.dynamic();
  void* p = shared.variable(key, bytes, options.shared_limit);
  if (p == nullptr) {
    throw Error(std::string("kernel ") + machine->kernel() + " needs more shared memory than " +
                std::to_string(options.shared_limit) + " bytes");
  }
  return p;
}

int block_barrier(Combine combine, bool predicate, Location where) {
  return machine->barrier(combine, predicate, where);
}

std::uint64_t warp_operation(WarpOperation operation, unsigned mask, std::uint64_t value,
                             int source, Location where) {
  return machine->warp(operation, mask, value, source, where);
}

void fence() {
  Thread& thread = *static_cast<Thread*>(current);
  if (thread.last_atomic != nullptr) acquire(thread.last_atomic);
  thread.fenced = true;
}

void note_atomic(const void* p) {
  Thread& thread = *static_cast<Thread*>(current);
  if (thread.fenced) release(p);
  thread.last_atomic = p;
}

void trap(Location where) {
  throw Error(std::string("__trap at ") + where.file_name() + ":" + std::to_string(where.line()));
}

}  // namespace emu
