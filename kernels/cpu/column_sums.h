// Sums over rows on the CPU: those of 32 rows each, which threads fill in, and their total.
#pragma once
#include <fp8amp/numerics/column_sums.h>
#include <fp8amp/parallel.h>

#include <algorithm>
#include <memory>

namespace fp8amp::kernels::cpu {

class ColumnSums {
 public:
  ColumnSums(std::int64_t rows, std::int64_t cols)
      : count_(numerics::sums_of_rows(rows)),
        cols_(cols),
        sums_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(count_ * cols))) {}

  // Number of the sums of 32 rows.
  std::int64_t count() const { return count_; }
  // The sums [count, cols] of 32 rows each, from row 32 k on, as zeros. Every sum is started once.
  float* start(std::int64_t k, std::int64_t count = 1) {
    std::fill_n(of_rows(k), count * cols_, 0.0f);
    return of_rows(k);
  }

  // total[cols], in the order of numerics/column_sums.h. Once.
  void add(float* total) {
    const std::int64_t grain = std::max<std::int64_t>(64, 65536 / (count_ + 1));
    parallel_for(0, cols_, grain, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t n = count_; n > 1; n = numerics::sums_of_rows(n))
        for (std::int64_t k = 0; k < numerics::sums_of_rows(n); ++k)
          add_32(k, std::min(numerics::kRowsOfSum, n - k * numerics::kRowsOfSum), from, to);
      if (count_ == 0)
        std::fill(total + from, total + to, 0.0f);
      else
        std::copy(of_rows(0) + from, of_rows(0) + to, total + from);
    });
  }

 private:
  float* of_rows(std::int64_t k) { return sums_.get() + k * cols_; }
  // Sums 32 k to 32 k + count - 1 become sum k, whose old value is one of those of k / 32.
  void add_32(std::int64_t k, std::int64_t count, std::int64_t from, std::int64_t to) {
    float* sum = of_rows(k);
    const float* row = of_rows(k * numerics::kRowsOfSum);
    if (k != 0) std::copy(row + from, row + to, sum + from);
    for (std::int64_t r = 1; r < count; ++r)
      for (std::int64_t i = from; i < to; ++i) sum[i] += row[r * cols_ + i];
  }

  std::int64_t count_, cols_;
  std::unique_ptr<float[]> sums_;
};

}  // namespace fp8amp::kernels::cpu
