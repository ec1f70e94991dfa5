// Sums over the rows of a matrix, one for each column: the gradients of biases, and of the gains
// and biases of norms. FP32, in one order on every machine and backend: 32 neighbouring rows are
// added in ascending order, from 0 on; then 32 neighbouring ones of these sums, and so on until one
// is left. No rows: 0.
#pragma once
#include <fp8amp/numerics/formats.h>

#include <cstdint>

namespace fp8amp::numerics {

inline constexpr std::int64_t kRowsOfSum = 32;

// Sums that `rows` rows, or as many sums, are added to.
FP8AMP_HD std::int64_t sums_of_rows(std::int64_t rows) {
  return (rows + kRowsOfSum - 1) / kRowsOfSum;
}

}  // namespace fp8amp::numerics
