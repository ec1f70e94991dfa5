// Checks at the public door: one sentence with operation, argument, what is wanted and what was
// seen.
#pragma once
#include <fp8amp/error.h>
#include <fp8amp/scaled_tensor.h>

#include <initializer_list>
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
// Payload of an allowed dtype; a float8 payload must have a scale_inv; scale_inv, if there, is a
// scalar.
void scaled(const char* op, const char* argument, const ScaledTensor& t,
            std::initializer_list<DType> allowed);
// A float8 matrix with a scale for each row or block.
void blocks(const char* op, const char* argument, const ScaledTensor& t);
void margin(const char* op, int value);  // exponent of the head-room of a scale
void finite(const char* op, const char* argument, double value);
// An empty tensor overlaps nothing.
void no_overlap(const char* op, const char* a_name, const Tensor& a, const char* b_name,
                const Tensor& b);

std::string to_string(const std::vector<std::int64_t>& shape);
std::string to_string(Device device);  // "cpu", "cuda:1"

// Pointer of an optional scalar: null if undefined.
inline const float* pointer(const Tensor& t) { return t.defined() ? t.data_as<float>() : nullptr; }
inline float* mutable_pointer(const Tensor& t) {
  return t.defined() ? t.mutable_data_as<float>() : nullptr;
}

}  // namespace fp8amp::check
