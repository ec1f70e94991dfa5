// Compiled without -fsanitize=thread (see fiber.cpp). Code that runs on a fiber calls no template
// of the standard library on types that kernels use as well: that copy may be instrumented.
#include "tests/emulator/machine.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace emu {

thread_local constinit ThreadContext* current = nullptr;

std::string text(uint3 i) {
  return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

std::uint64_t Machine::random() {
  random_state_ += 0x9e3779b97f4a7c15u;
  std::uint64_t z = random_state_;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  return z ^ z >> 31;
}

// ---- on a fiber ---------------------------------------------------------------------------------

__attribute__((no_sanitize("address"))) void Machine::thread_main() {
  Fiber::entered();
  Machine& m = *machine;
  Thread& self = m.self();
  BlockSet& set = *m.set_;
  acquire(&m.start_token_);
  acquire(&set.begin_token);
  try {
    m.launch_->thread();
  } catch (...) {
    m.error_ = std::current_exception();
  }
  release(&set.end_token);
  release(&m.end_token_);
  self.state = State::kExited;
  ++m.exited_;
  self.fiber->leave(true);
  __builtin_unreachable();
}

void Machine::suspend(State state) {
  Thread& thread = self();
  thread.state = state;
  release(&end_token_);  // should another thread's fault end the launch
  thread.fiber->leave(false);
}

int Machine::barrier(Combine combine, bool predicate, Location where) {
  Thread& thread = self();
  thread.where = where;
  thread.combine = combine;
  thread.value = predicate;
  ++at_barrier_;
  release(&set_->barrier_token);
  suspend(State::kAtBarrier);
  acquire(&set_->barrier_token);
  return int(thread.result);
}

std::uint64_t Machine::warp(WarpOperation operation, unsigned mask, std::uint64_t value, int source,
                            Location where) {
  Thread& thread = self();
  thread.operation = operation;
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  thread.where = where;
  const std::size_t warp = std::size_t(&thread - threads_.data()) / kWarp;
  ++in_warp_operation_[warp];
  // shuffles order no memory, __syncwarp does
  if (operation == WarpOperation::kSync) release(&set_->warp_tokens[warp]);
  suspend(State::kInWarpOperation);
  if (operation == WarpOperation::kSync) acquire(&set_->warp_tokens[warp]);
  return thread.result;
}

// ---- the scheduler ------------------------------------------------------------------------------

void Machine::fail(const std::string& what) {
  acquire(&end_token_);
  std::string message = what + ", in kernel " + launch_->kernel + ", block " + text(block_.index);
  int shown = 0;
  const Thread* before = nullptr;
  for (const Thread& thread : threads_) {  // the first thread of each run of threads in one place
    if (before != nullptr && before->state == thread.state && thread.state == State::kExited)
      continue;
    if (before != nullptr && before->state == thread.state && same_place(*before, thread)) continue;
    before = &thread;
    if (++shown > 8) break;
    message += "\n  thread " + text(thread.index) + " " + describe(thread);
  }
  throw Error(message);
}

void Machine::resume(Thread& thread) {
  if (thread.fiber == nullptr) {
    if (Fiber::checked_for_races()) {
      thread.fiber = set_->fibers[std::size_t(&thread - threads_.data())].get();
    } else {
      thread.fiber = set_->free.back();
      set_->free.pop_back();
    }
    thread.fiber->prepare(&thread_main);
  }
  current = &thread;
  ++switches_;
  thread.fiber->resume();
  if (thread.state == State::kExited && !Fiber::checked_for_races()) {
    set_->free.push_back(thread.fiber);
  }
  if (error_) {
    acquire(&end_token_);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

// Completes each group of lanes that have all arrived at one operation.
void Machine::finish_warp(std::size_t warp) {
  const std::size_t first = warp * kWarp, lanes = std::min(kWarp, threads_.size() - first);
  Thread* const threads = &threads_[first];
  for (std::size_t i = 0; i < lanes && in_warp_operation_[warp] != 0; ++i) {
    if (threads[i].state != State::kInWarpOperation) continue;
    const GroupState state = check_group(threads, lanes, i);
    if (state.fault != nullptr) fail(state.fault);
    if (!state.complete) continue;
    if (const char* fault = complete_group(threads, lanes, threads[i].mask)) fail(fault);
    in_warp_operation_[warp] -= state.size;
    ++statistics.warp_operations;
  }
}

// Runs every lane that can run, once; completes warp operations; says whether any ran.
bool Machine::run_warp(std::size_t warp) {
  const std::size_t first = warp * kWarp, lanes = std::min(kWarp, threads_.size() - first);
  const bool backward = options.schedule == 1;
  bool ran = false;
  for (std::size_t i = 0; i < lanes; ++i) {
    Thread& thread = threads_[first + (backward ? lanes - 1 - i : i)];
    if (thread.state != State::kReady) continue;
    resume(thread);
    ran = true;
  }
  if (in_warp_operation_[warp] != 0) finish_warp(warp);
  return ran;
}

void Machine::release_barrier() {
  const Thread* first = nullptr;
  std::uint64_t count = 0;
  for (const Thread& thread : threads_) {
    if (thread.state != State::kAtBarrier) continue;
    if (first == nullptr) first = &thread;
    if (!same_place(*first, thread)) fail("threads of a block wait at different barriers");
    count += thread.value;
  }
  const std::uint64_t all = count == at_barrier_, any = count != 0;
  for (Thread& thread : threads_) {
    if (thread.state != State::kAtBarrier) continue;
    thread.result = thread.combine == Combine::kCount ? count
                    : thread.combine == Combine::kAnd ? all
                                                      : any;
    thread.state = State::kReady;
  }
  at_barrier_ = 0;
  ++statistics.barriers;
}

// After a round in which no thread could run on: true when the block is done.
bool Machine::finish_round() {
  if (exited_ == threads_.size()) return true;
  if (at_barrier_ == 0 || at_barrier_ + exited_ != threads_.size()) fail("deadlock");
  release_barrier();
  return false;
}

void Machine::run_in_order() {
  const std::size_t warps = (threads_.size() + kWarp - 1) / kWarp;
  do {
    for (std::size_t i = 0; i < warps; ++i) {
      const std::size_t warp = options.schedule == 1 ? warps - 1 - i : i;
      while (run_warp(warp)) {
      }
    }
  } while (!finish_round());
}

void Machine::run_at_random() {
  const std::size_t n = threads_.size();
  for (;;) {
    for (std::size_t i = n - 1; i > 0; --i) std::swap(order_[i], order_[random() % (i + 1)]);
    bool ran = false;
    for (std::size_t i = 0; i < n; ++i) {
      Thread& thread = threads_[order_[i]];
      if (thread.state != State::kReady) continue;
      resume(thread);
      ran = true;
    }
    for (std::size_t w = 0; w < in_warp_operation_.size(); ++w) {
      if (in_warp_operation_[w] != 0) finish_warp(w);
    }
    if (!ran && finish_round()) return;
  }
}

void Machine::run_block() {
  acquire(&set_->end_token);  // of the block before the last, which used the same memory
  set_->shared.begin(launch_->shared_bytes, options.schedule % 2 == 0 ? 0xff : 0x7f);
  release(&set_->begin_token);
  for (Thread& thread : threads_) {
    thread.state = State::kReady;
    thread.fiber = nullptr;
  }
  exited_ = at_barrier_ = 0;
  ++statistics.blocks;
  if (options.schedule < 2) {
    run_in_order();
  } else {
    run_at_random();
  }
}

void Machine::prepare_threads() {
  const dim3 b = block_.block;
  const std::size_t n = std::size_t(b.x) * b.y * b.z;
  threads_.resize(n);
  in_warp_operation_.assign((n + kWarp - 1) / kWarp, 0);
  order_.resize(n);
  std::iota(order_.begin(), order_.end(), 0u);
  for (std::size_t i = 0; i < n; ++i) {
    threads_[i] = Thread{};
    threads_[i].index = {unsigned(i % b.x), unsigned(i / b.x % b.y), unsigned(i / b.x / b.y)};
    threads_[i].lane = int(i % kWarp);
    threads_[i].block = &block_;
  }
  for (BlockSet& set : sets_) {
    while (set.fibers.size() < n) {
      set.fibers.push_back(std::make_unique<Fiber>(int(set.fibers.size())));
      set.free.push_back(set.fibers.back().get());
    }
    if (!Fiber::checked_for_races()) break;
  }
}

void Machine::run(const Launch& launch) {
  const dim3 g = launch.grid;
  const std::uint64_t blocks = std::uint64_t(g.x) * g.y * g.z;
  launch_ = &launch;
  block_.block = launch.block;
  block_.grid = g;
  prepare_threads();
  random_state_ = options.schedule;
  block_order_.clear();
  if (options.schedule > 1 && blocks < std::uint64_t(1) << 32) {
    block_order_.resize(blocks);
    std::iota(block_order_.begin(), block_order_.end(), 0u);
    for (std::size_t i = blocks - 1; i > 0; --i)
      std::swap(block_order_[i], block_order_[random() % (i + 1)]);
  }
  release(&start_token_);
  switches_ = 0;
  for (std::uint64_t k = 0; k < blocks; ++k) {
    std::uint64_t i = k;
    if (options.schedule == 1) i = blocks - 1 - k;
    if (!block_order_.empty()) i = block_order_[k];
    block_.index = {unsigned(i % g.x), unsigned(i / g.x % g.y), unsigned(i / g.x / g.y)};
    set_ = &sets_[Fiber::checked_for_races() ? k % 2 : 0];
    run_block();
  }
  acquire(&end_token_);
  ++statistics.launches;
  statistics.threads += blocks * threads_.size();
  statistics.switches += switches_;
}

}  // namespace emu
