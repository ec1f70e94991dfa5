// Compiled without -fsanitize=thread: an instrumented scheduler would be a race detector's false
// alarm. EMU_TSAN says that the kernels are instrumented.
#include "tests/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#error "the stack switch is written for x86-64"
#endif

#if defined(EMU_TSAN)
extern "C" {
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void* __tsan_get_current_fiber();
void __tsan_acquire(void* p);
void __tsan_release(void* p);
}
#endif

namespace emu {
namespace {

// Frames are larger under AddressSanitizer. Untouched pages cost nothing.
constexpr std::size_t kStackBytes = 256 * 1024, kGuardBytes = 4096;

// The scheduler's side of a switch.
struct Scheduler {
  void* stack_pointer = nullptr;
  void* fake_stack = nullptr;
  const void* stack_bottom = nullptr;
  std::size_t stack_bytes = 0;
  void* race_context = nullptr;
};
thread_local constinit Scheduler scheduler;

// Saves the callee-saved registers on the stack, its pointer in *from, and goes on at `to`. A jump:
// the CPU predicts the target of a return from its own stack, which knows nothing of ours.
__attribute__((naked, noinline)) void switch_stack(void** /*from*/, void* /*to*/) {
  asm("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n popq %rcx\n"
      "jmp *%rcx\n");
}
constexpr int kSavedRegisters = 6;

}  // namespace

Fiber::Fiber(int number) {
  void* p = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || mprotect(p, kGuardBytes, PROT_NONE) != 0) std::abort();
  region_ = static_cast<char*>(p);
  top_ = region_ + kGuardBytes + kStackBytes - number * 5 % 64 * 64;
#if defined(EMU_TSAN)
  race_context_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(region_ + kGuardBytes, kStackBytes);
#endif
#if defined(EMU_TSAN)
  __tsan_destroy_fiber(race_context_);
#endif
  munmap(region_, kGuardBytes + kStackBytes);
}

void Fiber::prepare(void (*entry)()) {
  void** p = reinterpret_cast<void**>(top_);
  *--p = nullptr;  // entry's return address; leaves the stack aligned as after a call
  *--p = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--p = nullptr;
  stack_pointer_ = p;
  fake_stack_ = nullptr;
}

void Fiber::resume() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler.fake_stack, region_ + kGuardBytes, kStackBytes);
#endif
#if defined(EMU_TSAN)
  scheduler.race_context = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(race_context_, 1);  // 1: the switch itself orders nothing
#endif
  switch_stack(&scheduler.stack_pointer, stack_pointer_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler.fake_stack, nullptr, nullptr);
#endif
}

void Fiber::leave(bool last) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack_, scheduler.stack_bottom,
                                 scheduler.stack_bytes);
#endif
#if defined(EMU_TSAN)
  __tsan_switch_to_fiber(scheduler.race_context, 1);
#endif
  static_cast<void>(last);
  switch_stack(&stack_pointer_, scheduler.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &scheduler.stack_bottom, &scheduler.stack_bytes);
#endif
}

void Fiber::entered() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack_bottom, &scheduler.stack_bytes);
#endif
}

#if defined(EMU_TSAN)
bool Fiber::checked_for_races() { return true; }
void acquire(const void* p) { __tsan_acquire(const_cast<void*>(p)); }
void release(const void* p) { __tsan_release(const_cast<void*>(p)); }
#else
bool Fiber::checked_for_races() { return false; }
void acquire(const void*) {}
void release(const void*) {}
#endif

}  // namespace emu
