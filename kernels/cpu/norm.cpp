// Norm and clipping on the CPU.
#include "kernels/norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/tensor_blocks.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu {
namespace {

constexpr std::int64_t kGrain = 32;  // blocks a thread is woken for
constexpr std::int64_t kChunkGrain = 16;

struct Chunk {
  std::size_t tensor;
  std::int64_t first, n;
};

std::vector<Chunk> make_chunks(std::span<const NormTensor> tensors) {
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (std::int64_t first = 0; first < tensors[i].n; first += kNormChunk)
      chunks.push_back({i, first, std::min(kNormChunk, tensors[i].n - first)});
  return chunks;
}

double add_chunk(std::span<const double> values) {
  double part[kNormSums] = {};
  for (std::size_t i = 0; i < values.size(); ++i) part[i % kNormSums] += values[i];
  double sum = 0;
  for (double s : part) sum += s;
  return sum;
}

double add_all(std::vector<double> sums) {
  while (sums.size() > 1) {
    std::vector<double> next;
    for (std::size_t i = 0; i < sums.size(); i += kNormChunk)
      next.push_back(add_chunk(
          std::span(sums).subspan(i, std::min<std::size_t>(kNormChunk, sums.size() - i))));
    sums = std::move(next);
  }
  return sums.empty() ? 0.0 : sums.front();
}

}  // namespace

void norm(const NormArgs& args) {
  const std::vector<Chunk> chunks = make_chunks(args.tensors);
  std::vector<double> sums(chunks.size());
  parallel_for(0, static_cast<std::int64_t>(chunks.size()), kChunkGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t k = begin; k < end; ++k) {
                   const Chunk& c = chunks[static_cast<std::size_t>(k)];
                   const NormTensor& t = args.tensors[c.tensor];
                   const double scale_inv = t.scale_inv ? *t.scale_inv : 1.0f;
                   sums[static_cast<std::size_t>(k)] =
                       loops().sum_of_squares(element_pointer(t.x, t.x_type, c.first), t.x_type,
                                              c.n) *
                       (scale_inv * scale_inv);
                 }
               });
  *args.norm = static_cast<float>(std::sqrt(add_all(std::move(sums))));
}

void clip(const ClipArgs& args) {
  const float factor = args.max_norm / (*args.norm + 1e-6f);
  if (!(factor < 1.0f)) return;
  std::vector<NormTensor> plain;
  for (const NormTensor& t : args.tensors)
    if (t.scale_inv)
      *t.scale_inv = numerics::multiplied_scale_inv(*t.scale_inv, factor);
    else
      plain.push_back(t);
  for_each_run(std::span<const NormTensor>(plain), kGrain,
               [&](std::size_t i, std::int64_t first, std::int64_t n) {
                 loops().scale_values(element_pointer(plain[i].x, plain[i].x_type, first),
                                      plain[i].x_type, factor, n);
               });
}

}  // namespace fp8amp::kernels::cpu
