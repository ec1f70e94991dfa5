// What the tests of bad input share.
#pragma once
#include <fp8amp/fp8amp.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace fp8amp {

inline Tensor tensor(std::vector<std::int64_t> shape, DType dtype = DType::kFloat32) {
  return Tensor::allocate(std::move(shape), dtype);
}
inline ScaledTensor scaled(std::vector<std::int64_t> shape, DType dtype = DType::kE4M3) {
  return ScaledTensor::allocate(std::move(shape), dtype);
}

inline Tensor scalar(float value) {
  const Tensor t = tensor({});
  *t.mutable_data_as<float>() = value;
  return t;
}
inline ScaledTensor with_scale_inv(const ScaledTensor& t, float value) {
  return {t.payload(), scalar(value)};
}

inline void expect_error(const std::function<void()>& call, const std::vector<std::string>& parts) {
  try {
    call();
  } catch (const Error& e) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
          << e.what() << " lacks " << part;
    return;
  }
  ADD_FAILURE() << "no error that mentions " << parts.front();
}

}  // namespace fp8amp
