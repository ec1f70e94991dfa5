#include "tests/emulator/shared_arena.h"

#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(p, bytes)
#endif

namespace emu {
namespace {

constexpr std::size_t kAlign = 128, kGap = 32;

// Not memset, which the sanitizers intercept: the filling belongs to no CUDA thread.
__attribute__((no_sanitize("address"))) void fill(char* p, unsigned char byte, std::size_t bytes) {
  const std::size_t words = (bytes + 7) / 8;  // to the alignment's end
  auto* word = reinterpret_cast<volatile unsigned long long*>(p);
  for (std::size_t i = 0; i < words; ++i) word[i] = byte * 0x0101010101010101ull;
}

}  // namespace

SharedArena::SharedArena() : memory_(static_cast<char*>(std::aligned_alloc(kAlign, kCapacity))) {
  if (memory_ == nullptr) std::abort();
}

SharedArena::~SharedArena() {
  ASAN_UNPOISON_MEMORY_REGION(memory_, kCapacity);
  std::free(memory_);
}

void SharedArena::begin(std::size_t dynamic_bytes, unsigned char byte) {
  ASAN_POISON_MEMORY_REGION(memory_, used_);  // the rest is poisoned already
  ASAN_UNPOISON_MEMORY_REGION(memory_, dynamic_bytes);
  fill(memory_, byte, dynamic_bytes);
  used_ = bytes_ = dynamic_bytes;
  fill_ = byte;
  num_variables_ = 0;
}

void* SharedArena::variable(const void* key, std::size_t bytes, std::size_t limit) {
  for (std::size_t i = 0; i < num_variables_; ++i) {
    if (variables_[i].key == key) return variables_[i].address;
  }
  const std::size_t begin = (used_ + kGap + kAlign - 1) / kAlign * kAlign;
  const std::size_t end = (begin + bytes + 7) / 8 * 8;
  if (bytes_ + bytes > limit || end > kCapacity || num_variables_ == kMaxVariables) return nullptr;
  char* p = memory_ + begin;
  used_ = end;
  bytes_ += bytes;
  ASAN_UNPOISON_MEMORY_REGION(p, bytes);
  fill(p, fill_, bytes);
  variables_[num_variables_++] = {key, p};
  return p;
}

}  // namespace emu
