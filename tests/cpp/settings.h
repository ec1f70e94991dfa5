// How long the tests may take, from the environment: FP8AMP_TEST_QUICK under a sanitizer, where a
// part of the cases shows what it would find; FP8AMP_TEST_EXHAUSTIVE for all 2^32 floats.
#pragma once
#include <cstdlib>
#include <string>

namespace fp8amp::test {

inline bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && std::string(value) != "0";
}
inline bool quick() { return is_set("FP8AMP_TEST_QUICK"); }
inline bool exhaustive() { return is_set("FP8AMP_TEST_EXHAUSTIVE"); }

}  // namespace fp8amp::test
