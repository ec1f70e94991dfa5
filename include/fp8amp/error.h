// The one exception type: operation, argument and the value seen, as in "quantize: out must be
// float8_e4m3, got float16".
#pragma once
#include <stdexcept>

namespace fp8amp {

// Visible everywhere, so that a catch in another shared object sees the same type.
class __attribute__((visibility("default"))) Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace fp8amp
