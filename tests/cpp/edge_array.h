// Arrays that end exactly where unreadable memory begins (or begin where it ends): a loop that
// touches anything outside dies at once. As the length varies, so does the alignment.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace fp8amp::test {

enum class Edge { kEnd, kBegin };  // where the unreadable page lies

template <class T>
class EdgeArray {
 public:
  EdgeArray(std::int64_t n, Edge edge) : n_(n) {
    const std::size_t page = std::size_t(sysconf(_SC_PAGESIZE)), bytes = std::size_t(n) * sizeof(T);
    const std::size_t inside = (bytes + page - 1) / page * page;
    size_ = inside + 2 * page;
    void* p = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::abort();
    base_ = static_cast<char*>(p);
    char* begin = base_ + page;
    if (inside != 0 && mprotect(begin, inside, PROT_READ | PROT_WRITE) != 0) std::abort();
    data_ = reinterpret_cast<T*>(edge == Edge::kEnd ? begin + inside - bytes : begin);
  }
  ~EdgeArray() { munmap(base_, size_); }
  EdgeArray(const EdgeArray&) = delete;
  EdgeArray& operator=(const EdgeArray&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](std::int64_t i) { return data_[i]; }
  const T& operator[](std::int64_t i) const { return data_[i]; }
  std::int64_t size() const { return n_; }
  bool operator==(const EdgeArray& other) const {
    return std::memcmp(data_, other.data_, std::size_t(n_) * sizeof(T)) == 0;
  }

 private:
  std::int64_t n_;
  std::size_t size_;
  char* base_;
  T* data_;
};

}  // namespace fp8amp::test
