// A fiber: a stack of its own and the switch to it and back, with the calls that tell
// AddressSanitizer and ThreadSanitizer of each switch. For ThreadSanitizer a fiber is a thread.
// x86-64 only.
#pragma once
#include <cstddef>

namespace emu {

class Fiber {
 public:
  // `number` staggers the first frames, which would else share the same sets of the L1 cache.
  explicit Fiber(int number);
  ~Fiber();
  Fiber(const Fiber&) = delete;

  // The next resume() calls entry on an empty stack. It must not return but call leave(true).
  void prepare(void (*entry)());
  void resume();          // scheduler -> fiber
  void leave(bool last);  // fiber -> scheduler; last: the fiber will not be resumed here
  static void entered();  // first statement of entry

  static bool checked_for_races();  // built for ThreadSanitizer

 private:
  char* region_;  // a page without access, then the stack
  char* top_;
  void* stack_pointer_ = nullptr;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  void* race_context_ = nullptr;
};

// Edges for ThreadSanitizer: what came before release(p) happens before what follows acquire(p).
void acquire(const void* p);
void release(const void* p);

}  // namespace emu
