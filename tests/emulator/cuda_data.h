// Data for the tests that compare the CUDA backend on the emulator with the CPU backend, bit for
// bit.
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/convert.h>
#include <fp8amp/numerics/random.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/element.h"
#include "tests/cpp/settings.h"

namespace fp8amp::test {

// n elements on the heap, exactly: AddressSanitizer sees an access behind them. `offset` elements
// of misalignment.
class Data {
 public:
  Data(DType type, std::int64_t n, std::int64_t offset = 0)
      : type_(type),
        bytes_(static_cast<std::size_t>(n * size_in_bytes(type))),
        skip_(static_cast<std::size_t>(offset * size_in_bytes(type))),
        memory_(static_cast<char*>(std::malloc(bytes_ + skip_ + (bytes_ + skip_ == 0))),
                std::free) {
    std::memset(memory_.get(), 0, bytes_ + skip_);
  }
  Data(const Data& other)
      : type_(other.type_),
        bytes_(other.bytes_),
        skip_(other.skip_),
        memory_(static_cast<char*>(std::malloc(bytes_ + skip_ + (bytes_ + skip_ == 0))),
                std::free) {
    std::memcpy(memory_.get(), other.memory_.get(), bytes_ + skip_);
  }
  void* get() { return memory_.get() + skip_; }
  const void* get() const { return memory_.get() + skip_; }
  template <class T>
  T* as() {
    return static_cast<T*>(get());
  }
  DType type() const { return type_; }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_) / size_in_bytes(type_); }
  bool operator==(const Data& other) const { return std::memcmp(get(), other.get(), bytes_) == 0; }
  // "equal", or the first difference
  std::string difference(const Data& other) const {
    const auto* a = static_cast<const unsigned char*>(get());
    const auto* b = static_cast<const unsigned char*>(other.get());
    for (std::size_t i = 0; i < bytes_; ++i)
      if (a[i] != b[i])
        return "byte " + std::to_string(i) + " of " + std::to_string(bytes_) + ": " +
               std::to_string(a[i]) + " and " + std::to_string(b[i]);
    return "equal";
  }

 private:
  DType type_;
  std::size_t bytes_, skip_;
  std::unique_ptr<char, void (*)(void*)> memory_;
};

// Numbers over many binades, both signs, some zeros; in FP8 any code that is a finite number.
inline Data random_data(DType type, std::int64_t n, std::uint32_t seed, float size = 1.0f,
                        std::int64_t offset = 0) {
  Data d(type, n, offset);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t r = numerics::random_word(seed, std::uint64_t(i));
    const float unit = float(r & 0xffff) / 32768.0f - 1.0f;
    const float value = r >> 28 == 0 ? 0.0f : size * unit * std::ldexp(1.0f, -int(r >> 20 & 15));
    if (is_float8(type))
      kernels::store_code(d.get(), type, i, value, type == DType::kE4M3 ? 256.0f : 16384.0f,
                          Rounding::kNearest, Overflow::kSaturate, 0);
    else
      kernels::store_element(d.get(), type, i, value);
  }
  return d;
}

// Puts NaN and infinities (where the type has them) among the elements.
inline void add_specials(Data& d) {
  for (std::int64_t i = 3; i < d.size(); i += 37) {
    const float value = i % 3 == 0 ? NAN : i % 2 == 0 ? INFINITY : -INFINITY;
    if (is_float8(d.type()))
      d.as<std::uint8_t>()[i] = d.type() == DType::kE4M3 || i % 3 == 0 ? 0x7f
                                : i % 2 == 0                           ? 0x7c
                                                                       : 0xfc;
    else
      kernels::store_element(d.get(), d.type(), i, value);
  }
}

inline bool same(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

}  // namespace fp8amp::test
