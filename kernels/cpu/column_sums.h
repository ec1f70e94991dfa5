// Sums over rows on the CPU: those of 32 rows each, which threads fill in, and their total.
#pragma once
#include <fp8amp/numerics/column_sums.h>

#include <algorithm>
#include <vector>

namespace fp8amp::kernels::cpu {

class ColumnSums {
 public:
  ColumnSums(std::int64_t rows, std::int64_t cols)
      : count_(numerics::sums_of_rows(rows)),
        cols_(cols),
        sums_(static_cast<std::size_t>(std::max<std::int64_t>(count_, 1) * cols)) {}

  // Number of the sums of 32 rows.
  std::int64_t count() const { return count_; }
  // The sums [cols] of rows 32 k to 32 k + 31; 0 at first.
  float* of_rows(std::int64_t k) { return sums_.data() + k * cols_; }

  // total[cols], in the order of numerics/column_sums.h. Once.
  void add(float* total) {
    for (std::int64_t n = count_; n > 1; n = numerics::sums_of_rows(n))
      for (std::int64_t k = 0; k < numerics::sums_of_rows(n); ++k)
        add_32(k, std::min(numerics::kRowsOfSum, n - k * numerics::kRowsOfSum));
    std::copy_n(sums_.data(), cols_, total);
  }

 private:
  // Sums 32 k to 32 k + count - 1 become sum k, whose old value is one of those of k / 32.
  void add_32(std::int64_t k, std::int64_t count) {
    float* sum = of_rows(k);
    const float* row = of_rows(k * numerics::kRowsOfSum);
    std::copy_n(row, k ? cols_ : 0, sum);
    for (std::int64_t r = 1; r < count; ++r)
      for (std::int64_t i = 0; i < cols_; ++i) sum[i] += row[r * cols_ + i];
  }

  std::int64_t count_, cols_;
  std::vector<float> sums_;
};

}  // namespace fp8amp::kernels::cpu
