// What the doors of the casts share: checks of QuantizeOptions and of the transposed output, and
// the kernels' arguments.
#pragma once
#include <fp8amp/quantize.h>

#include <array>

#include "kernels/quantize.h"
#include "src/check.h"

namespace fp8amp {

// Checks `options` and fills what follows from them and from `out`, whose dtype and scale_inv are
// checked already; the caller adds the input.
kernels::QuantizeArgs cast_arguments(const char* op, const char* out_name, const ScaledTensor& out,
                                     const QuantizeOptions& options);

// Checks the transposed copy of out[rows, cols] and nearest rounding, and adds both to the
// arguments.
void add_transposed(const char* op, const char* out_name, const ScaledTensor& out,
                    const Tensor& transposed, const QuantizeOptions& options,
                    kernels::QuantizeArgs& args);

// What an operation reads and writes beside the output of its cast and the options.
inline constexpr std::size_t kOtherArguments = 5;
using OtherArguments = std::array<check::Memory, kOtherArguments>;

// Refuses a cast that writes what overlaps another argument.
void check_apart(const char* op, const char* out_name, const ScaledTensor& out,
                 const Tensor& transposed, const QuantizeOptions& options,
                 const OtherArguments& others);

}  // namespace fp8amp
