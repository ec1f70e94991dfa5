#include "src/check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

namespace fp8amp::check {
namespace {

std::string text(const Memory& m) {
  const std::string name(m.argument), index = std::to_string(m.index);
  if (m.owner) return name + m.part + " of " + m.owner + " " + index;
  return (m.index < 0 ? name : name + "[" + index + "]") + m.part;
}

std::string text(float value) {
  std::ostringstream s;
  s << value;
  return s.str();
}

}  // namespace

void fail(const char* op, const std::string& argument, const std::string& wanted,
          const std::string& seen) {
  throw Error(std::string(op) + ": " + argument + " must " + wanted + ", got " + seen);
}

std::string to_string(const std::vector<std::int64_t>& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

std::string to_string(Device device) {
  if (device == kCpu) return "cpu";
  return (device.type == DeviceType::kCpu ? "cpu:" : "cuda:") + std::to_string(device.index);
}

void defined(const char* op, const char* argument, const Tensor& t) {
  if (!t.defined()) fail(op, argument, "be a tensor", "an undefined one");
}

void dtype(const char* op, const char* argument, const Tensor& t,
           std::initializer_list<DType> allowed) {
  defined(op, argument, t);
  std::string names;
  for (DType d : allowed) {
    if (t.dtype() == d) return;
    names += (names.empty() ? "" : ", ") + std::string(name(d));
  }
  fail(op, argument, (allowed.size() > 1 ? "be one of " : "be ") + names, name(t.dtype()));
}

void shape(const char* op, const char* argument, const Tensor& t,
           const std::vector<std::int64_t>& wanted) {
  defined(op, argument, t);
  if (t.shape() != wanted)
    fail(op, argument, "have shape " + to_string(wanted), to_string(t.shape()));
}

void dim(const char* op, const char* argument, const Tensor& t, std::int64_t wanted) {
  defined(op, argument, t);
  if (t.dim() != wanted)
    fail(op, argument, "have " + std::to_string(wanted) + " dimensions", to_string(t.shape()));
}

void device(const char* op, const char* argument, const Tensor& t, Device wanted) {
  defined(op, argument, t);
  if (t.device() != wanted) fail(op, argument, "be on " + to_string(wanted), to_string(t.device()));
}

void scalar(const char* op, const char* argument, const Tensor& t, Device wanted) {
  dtype(op, argument, t, {DType::kFloat32});
  if (t.numel() != 1) fail(op, argument, "have one element", to_string(t.shape()));
  device(op, argument, t, wanted);
}

void scale(const char* op, const char* argument, const Tensor& t, Device wanted) {
  scalar(op, argument, t, wanted);
  if (wanted.type != DeviceType::kCpu) return;
  const float value = *t.data_as<float>();
  if (value >= 0x1p-126f && value <= 0x1p126f) return;
  fail(op, argument, "be from 2^-126 to 2^126", text(value));
}

void positive(const char* op, const char* argument, const Tensor& t, Device wanted) {
  scalar(op, argument, t, wanted);
  if (wanted.type != DeviceType::kCpu) return;
  const float value = *t.data_as<float>();
  if (!(value > 0) || !std::isfinite(value))
    fail(op, argument, "be positive and finite", text(value));
}

void scaled(const char* op, const char* argument, const ScaledTensor& t,
            std::initializer_list<DType> allowed) {
  dtype(op, argument, t.payload(), allowed);
  if (t.granularity() != ScaleGranularity::kTensor)
    fail(op, argument, "have one scale", name(t.granularity()));
  if (t.scaled())
    return scalar(op, (std::string(argument) + ".scale_inv").c_str(), t.scale_inv(), t.device());
  if (is_float8(t.dtype())) fail(op, argument, "have a scale_inv", "a plain float8 tensor");
}

void blocks(const char* op, const char* argument, const ScaledTensor& t) {
  dtype(op, argument, t.payload(), {DType::kE4M3, DType::kE5M2});
  dim(op, argument, t.payload(), 2);
  if (t.granularity() == ScaleGranularity::kTensor)
    fail(op, argument, "have a scale for each row or block", name(t.granularity()));
  const std::string scales = std::string(argument) + ".scale_inv";
  dtype(op, scales.c_str(), t.scale_inv(), {DType::kFloat32});
  shape(op, scales.c_str(), t.scale_inv(), scale_inv_shape(t.granularity(), t.shape()));
  device(op, scales.c_str(), t.scale_inv(), t.device());
}

void margin(const char* op, int value) {
  if (value < -64 || value > 64) fail(op, "margin", "be between -64 and 64", std::to_string(value));
}

void finite(const char* op, const char* argument, double value) {
  if (!std::isfinite(value)) fail(op, argument, "be finite", std::to_string(value));
}

void apart(const char* op, std::span<Memory> all) {
  const auto last =
      std::remove_if(all.begin(), all.end(), [](const Memory& m) { return m.begin == m.end; });
  std::sort(all.begin(), last,
            [](const Memory& a, const Memory& b) { return std::less<>()(a.begin, b.begin); });
  // those that reach furthest so far: of all, and of what is written
  const Memory *furthest = nullptr, *furthest_written = nullptr;
  for (const Memory& m : all.first(static_cast<std::size_t>(last - all.begin()))) {
    const Memory* other = m.written ? furthest : furthest_written;
    if (other && m.begin < other->end) {
      const Memory &one = m.written ? m : *other, &two = m.written ? *other : m;
      fail(op, text(one), "not overlap " + text(two), "the same memory");
    }
    if (!furthest || m.end > furthest->end) furthest = &m;
    if (m.written) furthest_written = &m;
  }
}

}  // namespace fp8amp::check
