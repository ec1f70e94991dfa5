// Every public function refuses an argument that it writes in the memory of another one, scales and
// flags included, and changes nothing.
#include <string>
#include <utility>
#include <vector>

#include "bad_input.h"

namespace fp8amp {
namespace {

// `watched` keeps its bytes.
void refused(const std::function<void()>& call, const std::vector<std::string>& parts,
             const std::vector<Tensor>& watched) {
  const auto bytes = [&] {
    std::string all;
    for (const Tensor& t : watched)
      if (t.defined()) all.append(t.data_as<char>(), static_cast<std::size_t>(t.nbytes()));
    return all;
  };
  const std::string before = bytes();
  expect_error(call, parts);
  EXPECT_EQ(bytes(), before) << parts.front();
}

// A view of the first elements of `t`.
Tensor in(const Tensor& t, std::vector<std::int64_t> shape = {}, DType dtype = DType::kFloat32) {
  return Tensor::view(t.mutable_data(), dtype, std::move(shape));
}
Tensor in(const ScaledTensor& t) { return in(t.payload()); }

struct Case {
  QuantizeOptions options;
  std::vector<std::string> parts;
};

TEST(SharedMemory, QuantizeOutputs) {
  const ScaledTensor x(tensor({4, 8}), scalar(2.0f)), out = scaled({4, 8});
  const Tensor transposed = tensor({8, 4}, DType::kE4M3), s = scalar(1.0f), h = tensor({8}),
               scale_inv = out.scale_inv();
  for (const Tensor& t : {h, out.payload(), transposed}) *t.mutable_data_as<float>() = 1.0f;
  const Case cases[] = {
      {{.scale = scale_inv}, {"out.scale_inv must not overlap scale"}},
      {{.scale = s, .amax = s}, {"amax must not overlap scale"}},
      {{.scale = s, .found_inf = s}, {"found_inf must not overlap scale"}},
      {{.scale = in(h), .column_sums = h}, {"column_sums must not overlap scale"}},
      {{.scale = in(out)}, {"out must not overlap scale"}},
      {{.amax = in(x)}, {"amax must not overlap x,"}},
      {{.amax = x.scale_inv()}, {"amax must not overlap x.scale_inv"}},
      {{.amax = in(out)}, {"amax", "overlap", "out"}},
      {{.amax = scale_inv}, {"amax", "overlap", "out.scale_inv"}},
      {{.keep_scale = true, .amax = scale_inv}, {"amax must not overlap out.scale_inv"}},
      {{.amax = s, .found_inf = s}, {"amax", "overlap", "found_inf"}},
      {{.found_inf = in(x)}, {"found_inf must not overlap x,"}},
      {{.found_inf = scale_inv}, {"found_inf", "overlap", "out.scale_inv"}},
      {{.history = h, .amax = in(h)}, {"amax", "overlap", "history"}},
      {{.history = in(x.payload(), {8})}, {"history must not overlap x,"}},
      {{.history = in(out.payload(), {8})}, {"history", "overlap", "out"}},
      {{.history = h, .column_sums = h}, {"history", "overlap", "column_sums"}},
      {{.amax = in(h), .column_sums = h}, {"amax", "overlap", "column_sums"}},
      {{.column_sums = in(x.payload(), {8})}, {"column_sums must not overlap x,"}}};
  const std::vector<Tensor> watched{x.payload(), x.scale_inv(), out.payload(), scale_inv, h, s};
  for (auto [options, parts] : cases) {
    const QuantizeOptions o = options;
    parts.push_back("quantize: ");
    refused([&] { quantize(x, out, o); }, parts, watched);
    parts.back() = "quantize_transpose: ";
    refused([&] { quantize_transpose(x, out, transposed, o); }, parts, watched);
  }
  for (const QuantizeOptions& o : {QuantizeOptions{.scale = in(transposed)},
                                   {.amax = in(transposed)},
                                   {.history = in(transposed, {8})},
                                   {.column_sums = in(transposed, {8})}})
    refused([&] { quantize_transpose(x, out, transposed, o); },
            {"quantize_transpose", "transposed", "overlap"}, watched);
}

TEST(SharedMemory, QuantizeScales) {
  const ScaledTensor x(tensor({4, 8}), scalar(2.0f)), in_x(tensor({4, 8}, DType::kE4M3), in(x)),
      one(tensor({4, 8}, DType::kE4M3), x.scale_inv());
  const std::vector<Tensor> watched{x.payload(), x.scale_inv(), in_x.payload(), one.payload()};
  refused([&] { quantize(x, in_x); }, {"quantize: out.scale_inv must not overlap x,"}, watched);
  refused([&] { quantize(x, one); }, {"quantize: out.scale_inv must not overlap x.scale_inv"},
          watched);
  refused(
      [&] {
        quantize_transpose(x, one, tensor({8, 4}, DType::kE4M3));
      },
      {"quantize_transpose: out.scale_inv must not overlap x.scale_inv"}, watched);
  const Tensor codes = tensor({32}, DType::kE4M3);
  const ScaledTensor itself(in(codes, {4, 8}, DType::kE4M3), in(codes));
  refused([&] { quantize(x, itself); }, {"quantize: out", "overlap", "out.scale_inv"}, {codes});
  // a scale that is only read may be that of both
  quantize(x, one, {.keep_scale = true});
  EXPECT_EQ(*x.scale_inv().data_as<float>(), 2.0f);
}

TEST(SharedMemory, CastsWithoutOptions) {
  const ScaledTensor x(tensor({4}, DType::kE4M3), scalar(1.0f)),
      one = scaled({4}), same_scale(tensor({4}, DType::kE4M3), one.scale_inv()),
      column(tensor({4, 1}), scalar(1.0f)), single = scaled({1});
  const Tensor values = tensor({4});
  const std::vector<Tensor> watched{x.payload(),        x.scale_inv(),   one.payload(),
                                    one.scale_inv(),    values,          column.scale_inv(),
                                    single.scale_inv(), single.payload()};
  refused([&] { dequantize(single, in(single.scale_inv(), {1})); },
          {"dequantize: out must not overlap x.scale_inv"}, watched);
  refused([&] { amax(x, x.scale_inv()); }, {"amax: out must not overlap x.scale_inv"}, watched);
  refused([&] { amax(values, in(values)); }, {"amax: out must not overlap x,"}, watched);
  refused([&] { column_sums(column, in(column.scale_inv(), {1})); },
          {"column_sums: out must not overlap x.scale_inv"}, watched);
  refused([&] { accumulate(same_scale, one); },
          {"accumulate: sum.scale_inv must not overlap x.scale_inv"}, watched);
  *values.mutable_data_as<float>() = 1.0f;
  refused([&] { accumulate(values, ScaledTensor(one.payload(), in(values))); },
          {"accumulate: sum.scale_inv must not overlap x,"}, watched);
  const ScaledTensor a = scaled({1, 1}), b = scaled({1, 1});
  refused(
      [&] {
        gemm(a, b, in(a.scale_inv(), {1, 1}));
      },
      {"gemm: out must not overlap a.scale_inv"}, {a.scale_inv()});
  refused(
      [&] {
        gemm(a, b, in(b.scale_inv(), {1, 1}));
      },
      {"gemm: out must not overlap b.scale_inv"}, {b.scale_inv()});
}

TEST(SharedMemory, QuantizeBlocks) {
  const ScaledTensor x(tensor({4, 8}), scalar(1.0f));
  const auto rows = [](std::vector<std::int64_t> shape, Tensor scales) {
    return ScaledTensor(tensor(std::move(shape), DType::kE4M3), std::move(scales),
                        ScaleGranularity::kRow);
  };
  const Tensor out_scales = tensor({4}), scales = tensor({8});
  const ScaledTensor out = rows({4, 8}, out_scales), transposed = rows({8, 4}, scales);
  const std::vector<Tensor> watched{x.payload(), x.scale_inv(), out_scales, scales};
  for (const auto& [found_inf, other] : {std::pair{in(x), "x,"},
                                         {x.scale_inv(), "x.scale_inv"},
                                         {in(out), "out"},
                                         {in(out_scales), "out.scale_inv"},
                                         {in(transposed), "transposed"},
                                         {in(scales), "transposed.scale_inv"}})
    refused([&, flag = found_inf] { quantize_blocks(x, out, transposed, {.found_inf = flag}); },
            {"quantize_blocks: ", "found_inf", "overlap", other}, watched);
  refused(
      [&] {
        quantize_blocks(x, rows({4, 8}, in(scales, {4})), transposed);
      },
      {"quantize_blocks", "out.scale_inv", "transposed.scale_inv"}, watched);
  refused(
      [&] {
        quantize_blocks(x, rows({4, 8}, in(x.payload(), {4})));
      },
      {"quantize_blocks: out.scale_inv must not overlap x,"}, watched);
  const ScaledTensor row = rows({1, 1}, in(x.scale_inv(), {1}));
  refused(
      [&] {
        quantize_blocks(ScaledTensor(tensor({1, 1}), x.scale_inv()), row);
      },
      {"quantize_blocks: out.scale_inv must not overlap x.scale_inv"}, watched);
}

TEST(SharedMemory, Fused) {
  const Tensor x = tensor({4, 4}), dy = tensor({4, 4}), narrow = tensor({4, 2}),
               gamma = tensor({4}), beta = tensor({4}), mean = tensor({4}), rstd = tensor({4}),
               s = scalar(1.0f), transposed = tensor({4, 4}, DType::kE4M3);
  const ScaledTensor out = scaled({4, 4}), half = scaled({4, 2}),
                     in_x(tensor({4, 4}, DType::kE4M3), in(x)),
                     in_gamma(tensor({4, 4}, DType::kE4M3), in(gamma));
  const std::vector<Tensor> watched{x,    dy, narrow,        gamma,           beta,      mean,
                                    rstd, s,  out.payload(), out.scale_inv(), transposed};
  const auto norm = [&](const ScaledTensor& to, const Tensor& means, const Tensor& t,
                        const QuantizeOptions& o) {
    return [&, t, o] { layer_norm_quantize(x, gamma, beta, 0, to, means, rstd, t, o); };
  };
  for (const auto& [flag, other] : {std::pair{in(x), "x,"},
                                    {in(gamma), "gamma"},
                                    {in(beta), "beta"},
                                    {in(mean), "mean"},
                                    {in(rstd), "rstd"},
                                    {in(out), "out"},
                                    {out.scale_inv(), "out.scale_inv"},
                                    {in(transposed), "transposed"}}) {
    refused(norm(out, mean, transposed, {.amax = flag}),
            {"layer_norm_quantize: ", "amax", "overlap", other}, watched);
    refused(norm(out, mean, transposed, {.found_inf = flag}),
            {"layer_norm_quantize: ", "found_inf", "overlap", other}, watched);
  }
  refused(norm(in_x, mean, {}, {}), {"out.scale_inv must not overlap x,"}, watched);
  refused(norm(in_gamma, mean, {}, {}), {"out.scale_inv must not overlap gamma"}, watched);
  refused(norm(out, rstd, {}, {}), {"layer_norm_quantize: ", "mean", "overlap", "rstd"}, watched);
  *mean.mutable_data_as<float>() = 1.0f;
  refused(norm(out, mean, {}, {.scale = in(mean)}), {"mean must not overlap scale"}, watched);
  refused([&] { rms_norm_quantize(x, gamma, 0, out, rstd, {}, {.amax = in(rstd)}); },
          {"rms_norm_quantize: ", "amax", "overlap", "rstd"}, watched);
  refused([&] { gelu_quantize(x, GeluForm::kErf, out, {}, {.amax = s, .found_inf = s}); },
          {"gelu_quantize: ", "amax", "overlap", "found_inf"}, watched);
  refused([&] { swiglu_quantize(x, half, {}, {.scale = half.scale_inv()}); },
          {"swiglu_quantize: out.scale_inv must not overlap scale"}, watched);
  refused([&] { gelu_backward_quantize(dy, x, GeluForm::kErf, out, {}, {.amax = in(dy)}); },
          {"gelu_backward_quantize: amax must not overlap dy"}, watched);
  refused([&] { gelu_backward_quantize(dy, x, GeluForm::kErf, in_x); },
          {"gelu_backward_quantize: dx.scale_inv must not overlap x,"}, watched);
  refused([&] { swiglu_backward_quantize(narrow, x, out, {}, {.found_inf = in(narrow)}); },
          {"swiglu_backward_quantize: found_inf must not overlap dy"}, watched);
  refused(
      [&] {
        swiglu_backward_quantize(narrow, x, out, in(dy, {4, 4}, DType::kE4M3), {.amax = in(dy)});
      },
      {"swiglu_backward_quantize: ", "transposed", "overlap", "amax"}, watched);
}

TEST(SharedMemory, NormBackward) {
  const Tensor x = tensor({4, 4}), dy = tensor({4, 4}), dx = tensor({4, 4}), gamma = tensor({4}),
               mean = tensor({4}), rstd = tensor({4}), dgamma = tensor({4});
  const std::vector<Tensor> watched{x, dy, dx, gamma, mean, rstd, dgamma};
  for (const auto& [dbeta, other] : {std::pair{dgamma, "dgamma"},
                                     {gamma, "gamma"},
                                     {mean, "mean"},
                                     {rstd, "rstd"},
                                     {in(x, {4}), "x,"},
                                     {in(dy, {4}), "dy"},
                                     {in(dx, {4}), "dx"}})
    refused([&, to = dbeta] { layer_norm_backward(dy, x, mean, rstd, gamma, dx, dgamma, to); },
            {"layer_norm_backward: ", "dbeta", "overlap", other}, watched);
}

TEST(SharedMemory, SumShards) {
  const ScaledTensor a = scaled({8}), b = scaled({8}), out = scaled({8}),
                     same_scale(tensor({8}, DType::kE4M3), b.scale_inv()),
                     in_b(tensor({8}, DType::kE4M3), in(b));
  const Tensor s = scalar(1.0f);
  const std::vector<ScaledTensor> shards{a, b};
  const std::vector<Tensor> watched{
      a.payload(), a.scale_inv(), b.payload(), b.scale_inv(), out.payload(), out.scale_inv(), s};
  refused([&] { sum_shards(shards, same_scale); },
          {"sum_shards: out.scale_inv must not overlap shards[1].scale_inv"}, watched);
  refused([&] { sum_shards(shards, in_b); },
          {"sum_shards: out.scale_inv must not overlap shards[1],"}, watched);
  const std::pair<SumShardsOptions, std::vector<std::string>> cases[] = {
      {{.scale = out.scale_inv()}, {"out.scale_inv must not overlap scale"}},
      {{.bound = out.scale_inv()}, {"out.scale_inv must not overlap bound"}},
      {{.bound = s, .amax = s}, {"amax must not overlap bound"}},
      {{.amax = s, .found_inf = s}, {"amax", "overlap", "found_inf"}},
      {{.amax = in(a)}, {"amax must not overlap shards[0],"}},
      {{.found_inf = in(out)}, {"found_inf", "overlap", "out"}},
      {{.found_inf = a.scale_inv()}, {"found_inf must not overlap shards[0].scale_inv"}}};
  for (const auto& [options, parts] : cases)
    refused([&, o = options] { sum_shards(shards, out, o); }, parts, watched);
  sum_shards(std::vector<ScaledTensor>{a, a}, out);
}

TEST(SharedMemory, NormAndClipping) {
  const ScaledTensor plain(tensor({4})),
      a = scaled({4}), b(tensor({4}, DType::kE4M3), a.scale_inv()), c(a.payload(), scalar(1.0f));
  *plain.payload().mutable_data_as<float>() = 100.0f;
  const Tensor norm = scalar(7.0f);
  const std::vector<Tensor> watched{plain.payload(), a.payload(), a.scale_inv(), norm};
  using List = std::vector<ScaledTensor>;
  const std::pair<Tensor, const char*> shared[] = {
      {in(plain), "grads[0]"}, {in(a), "grads[1]"}, {a.scale_inv(), "grads[1].scale_inv"}};
  for (const auto& [to, other] : shared) {
    const Tensor out = to;
    refused(
        [&] {
          grad_norm(List{plain, a}, out);
        },
        {"grad_norm: norm must not overlap", other}, watched);
    refused(
        [&] {
          clip_grad_norm(List{plain, a}, 1.0f, out);
        },
        {"clip_grad_norm: ", "norm", "overlap", other}, watched);
  }
  for (const List& twice :
       {List{plain, plain}, List{a, a}, List{a, b}, List{a, ScaledTensor(in(a.scale_inv(), {1}))}})
    refused([&] { clip_grad_norm(twice, 1.0f, norm); },
            {"clip_grad_norm: ", "grads[0]", "overlap", "grads[1]"}, watched);
  refused(
      [&] {
        clip_grad_norm(List{a, in(a.payload(), {1})}, 1.0f, norm);
      },
      {"clip_grad_norm: grads[1] must not overlap grads[0],"}, watched);
  // what is only read may be shared
  grad_norm(List{plain, plain, a, a, b}, norm);
  clip_grad_norm(List{a, c}, 1.0f, norm);
}

}  // namespace
}  // namespace fp8amp
