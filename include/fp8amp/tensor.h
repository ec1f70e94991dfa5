// Tensor: a contiguous row-major array of a dtype on a device; a view of memory that somebody else
// owns, or an owner. Copies share memory; a moved-from tensor is undefined.
#pragma once
#include <fp8amp/device.h>
#include <fp8amp/dtype.h>
#include <fp8amp/export.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fp8amp {

class FP8AMP_API Tensor {
 public:
  Tensor() = default;  // undefined
  Tensor(const Tensor&) = default;
  Tensor(Tensor&& t) noexcept { swap(t); }
  Tensor& operator=(Tensor t) noexcept {
    swap(t);
    return *this;
  }
  ~Tensor() = default;

  // A view of `data`: at least numel() elements in row-major order, alive as long as the view is
  // used. numel() == 0 allows nullptr.
  static Tensor view(void* data, DType dtype, std::vector<std::int64_t> shape,
                     Device device = kCpu);
  static Tensor view(const void* data, DType dtype, std::vector<std::int64_t> shape,
                     Device device = kCpu);  // read only
  static Tensor view(std::nullptr_t, DType dtype, std::vector<std::int64_t> shape,
                     Device device = kCpu) {
    return view(static_cast<void*>(nullptr), dtype, std::move(shape), device);
  }
  // Zero-initialised memory, 64-byte aligned.
  static Tensor allocate(std::vector<std::int64_t> shape, DType dtype, Device device = kCpu);

  bool defined() const { return defined_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t dim() const { return static_cast<std::int64_t>(shape_.size()); }
  std::int64_t size(std::int64_t i) const;  // of dimension i, from 0 to dim() - 1
  std::int64_t numel() const { return numel_; }
  std::int64_t nbytes() const { return numel_ * size_in_bytes(dtype_); }
  bool read_only() const { return read_only_; }

  const void* data() const { return data_; }
  void* mutable_data() const;  // throws on a read-only view
  template <class T>
  const T* data_as() const {
    return static_cast<const T*>(data_);
  }
  template <class T>
  T* mutable_data_as() const {
    return static_cast<T*>(mutable_data());
  }

  std::string to_string() const;  // "float32[4, 8] on cpu"

 private:
  void swap(Tensor& t) noexcept {
    std::swap(data_, t.data_);
    owner_.swap(t.owner_);
    shape_.swap(t.shape_);
    std::swap(numel_, t.numel_);
    std::swap(dtype_, t.dtype_);
    std::swap(device_, t.device_);
    std::swap(defined_, t.defined_);
    std::swap(read_only_, t.read_only_);
  }

  void* data_ = nullptr;
  std::shared_ptr<void> owner_;
  std::vector<std::int64_t> shape_;
  std::int64_t numel_ = 0;
  DType dtype_ = DType::kFloat32;
  Device device_;
  bool defined_ = false, read_only_ = false;
};

}  // namespace fp8amp
