// The scheduler: the threads of one block at a time, each on a fiber.
#pragma once
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulator/cuda_emu.h"
#include "tests/emulator/fiber.h"
#include "tests/emulator/shared_arena.h"
#include "tests/emulator/warp_groups.h"

namespace emu {

inline constexpr std::size_t kWarp = 32, kMaxThreads = 1024;

// Blocks that follow each other are unordered for ThreadSanitizer if they share nothing: two sets.
struct BlockSet {
  SharedArena shared;
  std::vector<std::unique_ptr<Fiber>> fibers;
  // Without race detection: the stack that was used last, still in the cache, is the next.
  std::vector<Fiber*> free;
  // Two tokens: a thread that exits is not ordered before one of its block that starts later.
  char begin_token = 0, end_token = 0, barrier_token = 0;
  char warp_tokens[kMaxThreads / kWarp] = {};
};

// Runs launches, one after the other. One for each host thread; stacks and memory stay between
// launches.
class Machine {
 public:
  void run(const Launch& launch);
  int barrier(Combine combine, bool predicate, Location where);
  std::uint64_t warp(WarpOperation operation, unsigned mask, std::uint64_t value, int source,
                     Location where);
  SharedArena& shared() { return set_->shared; }
  const char* kernel() const { return launch_->kernel; }

 private:
  static void thread_main();
  void prepare_threads();
  void run_block();
  void resume(Thread& thread);
  bool run_warp(std::size_t warp);
  void run_in_order();
  void run_at_random();
  bool finish_round();
  void finish_warp(std::size_t warp);
  void release_barrier();
  Thread& self() { return *static_cast<Thread*>(current); }
  void suspend(State state);
  [[noreturn]] void fail(const std::string& what);
  std::uint64_t random();

  const Launch* launch_ = nullptr;
  BlockContext block_{};
  BlockSet sets_[2];
  BlockSet* set_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<std::uint32_t> order_, block_order_;
  std::vector<std::uint32_t> in_warp_operation_;  // per warp, lanes that wait
  std::size_t at_barrier_ = 0, exited_ = 0;
  std::exception_ptr error_;
  std::uint64_t random_state_ = 0, switches_ = 0;
  char start_token_ = 0, end_token_ = 0;
};

// Of this host thread; null before its first launch.
extern thread_local constinit Machine* machine;

std::string text(uint3 i);  // "(1, 2, 3)"

}  // namespace emu
