// Checks at the public door: one sentence with operation, argument, what is wanted and what was
// seen.
#pragma once
#include <fp8amp/error.h>
#include <fp8amp/scaled_tensor.h>

#include <initializer_list>
#include <span>
#include <string>

namespace fp8amp::check {

[[noreturn]] void fail(const char* op, const std::string& argument, const std::string& wanted,
                       const std::string& seen);

void defined(const char* op, const char* argument, const Tensor& t);
void dtype(const char* op, const char* argument, const Tensor& t,
           std::initializer_list<DType> allowed);
void shape(const char* op, const char* argument, const Tensor& t,
           const std::vector<std::int64_t>& wanted);
void dim(const char* op, const char* argument, const Tensor& t, std::int64_t wanted);
void device(const char* op, const char* argument, const Tensor& t, Device wanted);
// float32[] on `device`
void scalar(const char* op, const char* argument, const Tensor& t, Device device);
// The same, to be used as a scale: from 2^-126 to 2^126, so that its reciprocal is normal. The
// value is read on the CPU alone: on a GPU that would wait for the device.
void scale(const char* op, const char* argument, const Tensor& t, Device device);
// The same, positive and finite alone: a scale whose reciprocal nobody needs.
void positive(const char* op, const char* argument, const Tensor& t, Device device);
// Payload of an allowed dtype; a float8 payload must have a scale_inv; scale_inv, if there, is a
// scalar.
void scaled(const char* op, const char* argument, const ScaledTensor& t,
            std::initializer_list<DType> allowed);
// A float8 matrix with a scale for each row or block.
void blocks(const char* op, const char* argument, const ScaledTensor& t);
void margin(const char* op, int value);  // exponent of the head-room of a scale
void finite(const char* op, const char* argument, double value);

// The memory of an argument or of its `part`: "x", "x.scale_inv", "shards[1].scale_inv"; with an
// owner "exp_avg.scale_inv of parameter 1". The strings are literals: no text is made of them
// before something is wrong.
struct Memory {
  const char *begin = nullptr, *end = nullptr;
  bool written = false;
  const char *argument = "", *part = "", *owner = nullptr;
  std::int64_t index = -1;
};
inline Memory reads(const char* argument, const Tensor& t, const char* part = "",
                    std::int64_t index = -1, const char* owner = nullptr) {
  const auto* begin = t.data_as<char>();
  return {begin, begin + t.nbytes(), false, argument, part, owner, index};
}
inline Memory writes(const char* argument, const Tensor& t, const char* part = "",
                     std::int64_t index = -1, const char* owner = nullptr) {
  Memory m = reads(argument, t, part, index, owner);
  m.written = true;
  return m;
}
// Refuses what is written and overlaps anything else; sorts `all`. Undefined and empty tensors
// overlap nothing.
void apart(const char* op, std::span<Memory> all);

std::string to_string(const std::vector<std::int64_t>& shape);
std::string to_string(Device device);  // "cpu", "cuda:1"

// Pointer of an optional scalar: null if undefined.
inline const float* pointer(const Tensor& t) { return t.defined() ? t.data_as<float>() : nullptr; }
inline float* mutable_pointer(const Tensor& t) {
  return t.defined() ? t.mutable_data_as<float>() : nullptr;
}

}  // namespace fp8amp::check
