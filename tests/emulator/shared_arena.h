// The shared memory of one block: variables apart from each other, the rest unreadable for
// AddressSanitizer, and filled so that a read before the first write shows.
#pragma once
#include <cstddef>

namespace emu {

class SharedArena {
 public:
  SharedArena();
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;

  void begin(std::size_t dynamic_bytes, unsigned char fill);  // a new block
  void* dynamic() { return memory_; }
  // The variable known by `key`, new at the block's first call; null: more than `limit` bytes.
  void* variable(const void* key, std::size_t bytes, std::size_t limit);

 private:
  static constexpr std::size_t kCapacity = 512 * 1024, kMaxVariables = 64;
  struct Variable {
    const void* key;
    char* address;
  };

  char* memory_;
  std::size_t used_ = kCapacity;  // with the gaps
  std::size_t bytes_ = 0;         // without
  unsigned char fill_ = 0;
  Variable variables_[kMaxVariables];
  std::size_t num_variables_ = 0;
};

}  // namespace emu
