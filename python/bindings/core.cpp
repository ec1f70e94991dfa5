// fp8amp._core: the torch-free C++ types for Python, and NumPy entry points to the core library.
#include <fp8amp/fp8amp.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

namespace py = pybind11;
using namespace fp8amp;

namespace {

std::vector<int64_t> shape_of(const py::array& a) { return {a.shape(), a.shape() + a.ndim()}; }

// float32 and float16 arrays are plain numbers; the array must stay alive while the view is used.
Tensor view(const py::array& a) {
  if (!(a.flags() & py::array::c_style)) throw py::value_error("x must be C-contiguous");
  if (a.dtype().kind() == 'f' && a.itemsize() == 4)
    return Tensor::view(a.data(), DType::kFloat32, shape_of(a));
  if (a.dtype().kind() == 'f' && a.itemsize() == 2)
    return Tensor::view(a.data(), DType::kFloat16, shape_of(a));
  throw py::type_error("x must be a float32 or float16 array, got " +
                       py::str(a.dtype()).cast<std::string>());
}

Tensor scalar(float value) {
  Tensor t = Tensor::allocate({}, DType::kFloat32);
  *t.mutable_data_as<float>() = value;
  return t;
}

ScaledTensor quantize_array(const py::array& x, DType format, std::optional<float> scale,
                            ScaleRounding scale_rounding, int margin, Rounding rounding,
                            Overflow overflow, uint64_t seed) {
  const Tensor in = view(x);
  if (scale && !(*scale > 0 && *scale <= numerics::kMaxScale))
    throw py::value_error("scale must be in (0, 2^126], got " + std::to_string(*scale));
  ScaledTensor out = ScaledTensor::allocate(in.shape(), format);
  QuantizeOptions options;
  options.scale_rounding = scale_rounding;
  options.margin = margin;
  options.rounding = rounding;
  options.overflow = overflow;
  options.seed = seed;
  if (scale) options.scale = scalar(*scale);
  quantize(in, out, options);
  return out;
}

py::array_t<float> dequantize_array(const ScaledTensor& x) {
  py::array_t<float> out(std::vector<py::ssize_t>(x.shape().begin(), x.shape().end()));
  dequantize(x, Tensor::view(static_cast<void*>(out.mutable_data()), DType::kFloat32, x.shape()));
  return out;
}

py::array_t<float> gemm_arrays(const ScaledTensor& a, const ScaledTensor& b, bool transpose_a,
                               bool transpose_b,
                               std::optional<py::array_t<float, py::array::c_style>> bias) {
  if (a.shape().size() != 2 || b.shape().size() != 2)
    throw py::value_error("a and b must have 2 dimensions");
  const std::vector<int64_t> shape = {a.shape()[transpose_a ? 1 : 0],
                                      b.shape()[transpose_b ? 0 : 1]};
  py::array_t<float> out(std::vector<py::ssize_t>(shape.begin(), shape.end()));
  GemmOptions options;
  options.transpose_a = transpose_a;
  options.transpose_b = transpose_b;
  Tensor bias_view;
  if (bias) options.bias = &(bias_view = view(*bias));
  gemm(a, b, Tensor::view(static_cast<void*>(out.mutable_data()), DType::kFloat32, shape), options);
  return out;
}

// The codes as bytes (uint8) or, for FP16, as float16; a view that keeps the tensor alive.
py::array payload_array(const py::object& self) {
  const auto& t = self.cast<const ScaledTensor&>();
  const py::dtype dtype(t.dtype() == DType::kFloat16   ? "float16"
                        : t.dtype() == DType::kFloat32 ? "float32"
                                                       : "uint8");
  return py::array(dtype, std::vector<py::ssize_t>(t.shape().begin(), t.shape().end()),
                   t.payload().mutable_data(), self);
}

void bind_types(py::module_& m) {
  py::enum_<DType>(m, "DType", "Element types: value names are those of torch.")
      .value("FLOAT32", DType::kFloat32)
      .value("FLOAT16", DType::kFloat16)
      .value("BFLOAT16", DType::kBFloat16)
      .value("E4M3", DType::kE4M3)
      .value("E5M2", DType::kE5M2)
      .def_property_readonly(
          "max", [](DType d) { return format_max(d); },
          "Largest finite value: 448, 57344, 65504, ...")
      .def_property_readonly(
          "itemsize", [](DType d) { return size_in_bytes(d); }, "Bytes per element.");
  py::enum_<Rounding>(m, "Rounding")
      .value("NEAREST", Rounding::kNearest)
      .value("STOCHASTIC", Rounding::kStochastic);
  py::enum_<ScaleRounding>(m, "ScaleRounding")
      .value("POWER_OF_TWO", ScaleRounding::kPowerOfTwo)
      .value("EXACT", ScaleRounding::kExact);
  py::enum_<Overflow>(m, "Overflow", "What +-Inf becomes.")
      .value("SATURATE", Overflow::kSaturate)
      .value("NAN", Overflow::kNaN);
  py::enum_<ScalingRecipe>(m, "ScalingRecipe")
      .value("CURRENT", ScalingRecipe::kCurrent)
      .value("DELAYED", ScalingRecipe::kDelayed)
      .value("CONSTANT", ScalingRecipe::kConstant);
  py::class_<ScaledTensor>(m, "ScaledTensor", "payload * scale_inv; made by quantize().")
      .def_property_readonly("payload", &payload_array,
                             "Codes: uint8 for float8 formats, float16 for scaled FP16.")
      .def_property_readonly(
          "scale_inv",
          [](const ScaledTensor& t) { return t.scaled() ? *t.scale_inv().data_as<float>() : 1.0f; })
      .def_property_readonly("dtype", &ScaledTensor::dtype)
      .def_property_readonly("shape",
                             [](const ScaledTensor& t) { return py::tuple(py::cast(t.shape())); })
      .def("dequantize", &dequantize_array, "float32 array of payload * scale_inv.");
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The torch-free core of fp8amp: formats, policies, scaled tensors on NumPy arrays.";
  py::register_exception<Error>(m, "Error", PyExc_RuntimeError);
  bind_types(m);
  m.def("version", &version, "Version of the core library.");
  m.def("build_info", &build_info, "JSON object: version, compiler, ISA level, CUDA.");
  m.def("isa_level", &isa_level,
        "Instruction-set level of the CPU kernels: v2, v3, v4 or baseline.");
  m.def(
      "compute_scale",
      [](float amax, DType format, ScaleRounding rounding, int margin, float previous) {
        if (margin < -64 || margin > 64)
          throw py::value_error("margin must be between -64 and 64, got " + std::to_string(margin));
        return numerics::compute_scale(amax, format_max(format), rounding, margin, previous);
      },
      py::arg("amax"), py::arg("format"), py::arg("scale_rounding") = ScaleRounding::kPowerOfTwo,
      py::arg("margin") = 0, py::arg("previous") = 1.0f,
      "Scale for a tensor of maximum amax; finite and in [2^-126, 2^126].");
  m.def("quantize", &quantize_array, py::arg("x"), py::arg("format") = DType::kE4M3, py::kw_only(),
        py::arg("scale") = py::none(), py::arg("scale_rounding") = ScaleRounding::kPowerOfTwo,
        py::arg("margin") = 0, py::arg("rounding") = Rounding::kNearest,
        py::arg("overflow") = Overflow::kSaturate, py::arg("seed") = 0,
        "ScaledTensor of a C-contiguous float32 or float16 array.");
  m.def("dequantize", &dequantize_array, py::arg("x"), "float32 array of x.payload * x.scale_inv.");
  m.def("gemm", &gemm_arrays, py::arg("a"), py::arg("b"), py::kw_only(),
        py::arg("transpose_a") = false, py::arg("transpose_b") = false,
        py::arg("bias") = py::none(),
        "op(a) @ op(b) + bias as a float32 array, accumulated in FP32.");
}
