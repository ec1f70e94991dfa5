"""fp8amp.quantize against torch's own casts after clamping, and the cases of the field reports (BR-xxx) on scales and
conversion."""

import math

import fp8amp
import pytest
import torch
from twins import E4M3, E5M2, FP16, MAX, code

FORMATS = [E4M3, E5M2, FP16]


def oracle(x, scale, format):
    return (x.float() * scale).clamp(-MAX[format], MAX[format]).to(format)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rule", ["power_of_two", "exact"])
def test_current_scaling_is_one_rounding_under_the_documented_scale(format, source, rule):
    x = (torch.randn(37, 53, generator=torch.Generator().manual_seed(0)) * 3).to(source)
    amax = x.float().abs().max()
    scale = torch.tensor(MAX[format]) / amax
    if rule == "power_of_two":
        scale = 2.0 ** torch.floor(torch.log2(scale))
    q = fp8amp.quantize(x, format, scale_rounding=rule)
    assert q.format is format and q.dtype is source and q.scale_inv.dtype is torch.float32
    assert torch.equal(q.scale_inv, scale.reciprocal())
    assert torch.equal(code(q.payload), code(oracle(x, scale, format)))
    assert torch.equal(q.dequantize(torch.float32), q.payload.float() * q.scale_inv)


@pytest.mark.parametrize("format", [E4M3, E5M2])
def test_every_code_dequantises_as_torch_does(format):
    codes = torch.arange(256, dtype=torch.uint8).view(format)
    got = fp8amp.ScaledTensor(codes, torch.tensor(0.5), torch.float32).dequantize()
    assert torch.equal(got.nan_to_num(7e9, 8e9, 9e9), (codes.float() * 0.5).nan_to_num(7e9, 8e9, 9e9))
    assert int((~torch.isfinite(got)).sum()) == {E4M3: 2, E5M2: 8}[format]  # BR-014


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", [(4, 4), (0, 16), (0,), ()])
def test_zero_and_empty_tensors_have_scale_one(format, shape):  # BR-001, BR-034
    q = fp8amp.quantize(torch.zeros(shape), format)
    assert q.shape == shape and float(q.scale_inv) == 1.0 and not q.dequantize().any() and not code(q.payload).any()


@pytest.mark.parametrize(
    "value,format", [(1e-30, E4M3), (1e-37, E4M3), (1e-38, E4M3), (2.0**-149, E4M3), (1e-35, E5M2), (1e-35, FP16)]
)
@pytest.mark.parametrize("rule", ["power_of_two", "exact"])
def test_tiny_amax_keeps_a_finite_normal_scale(value, format, rule):  # BR-004
    q = fp8amp.quantize(torch.full((16,), value), format, scale_rounding=rule)
    assert 2.0**-126 <= float(q.scale_inv) < math.inf and float(q.scale) <= 2.0**126
    assert torch.isfinite(q.dequantize()).all()
    if value == 1e-37:
        assert q.dequantize()[0] == pytest.approx(1.0579e-37, rel=1e-4)


def test_fp16_source_is_multiplied_in_fp32():  # BR-006
    x = torch.tensor([2.0**-17], dtype=torch.float16)
    half = fp8amp.quantize(x, FP16)
    assert half.dequantize(torch.float32).item() == 7.62939453125e-06
    assert fp8amp.quantize(half, E4M3).dequantize(torch.float32).item() == 7.62939453125e-06


@pytest.mark.parametrize(
    "x,want",
    [
        (448, 448),
        (464, 448),
        (464.01, 448),
        (465, 448),
        (500, 448),
        (1e30, 448),
        (math.inf, 448),
        (-math.inf, -448),
        (17, 16),
        (19, 20),
        (1.0625, 1.0),
        (1.1875, 1.25),
        (2.0**-10, 0.0),
        (2.0**-10 + 2.0**-20, 2.0**-9),
        (1.0625 + 2.0**-13, 1.125),
    ],
)
def test_e4m3_saturates_and_rounds_once(x, want):  # BR-007, BR-008, BR-010
    assert fp8amp.quantize(torch.tensor([float(x)]), scale=1.0).dequantize().item() == want


def test_nan_and_e5m2_edges():  # BR-007
    q = fp8amp.quantize(torch.tensor([math.nan, 61440.0, 1e9, -math.inf]), E5M2, scale=1.0).dequantize()
    assert math.isnan(q[0]) and q[1:].tolist() == [57344.0, 57344.0, -57344.0]
    assert code(fp8amp.quantize(torch.tensor([math.nan]), E4M3, scale=1.0).payload)[0] in (0x7F, 0xFF)


def test_power_of_two_scales_never_clip():  # BR-011
    for seed in range(200):
        x = torch.rand(100, generator=torch.Generator().manual_seed(seed)) * 2.0 ** (seed % 17 - 8)
        q = fp8amp.quantize(x)
        assert float((x * q.scale).abs().max()) <= 448.0 and math.log2(float(q.scale)).is_integer()


@pytest.mark.parametrize("place", [0, 1, 7, 8, 15, 16, 31, 999])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_element_shows_in_amax_and_not_in_the_scale(place, bad):  # BR-015
    x = torch.ones(1000)
    x[place] = bad
    assert not math.isfinite(float(torch.ops.fp8amp.amax(x)))
    q = fp8amp.quantize(x)
    assert (
        math.isfinite(float(q.scale_inv)) and float(q.scale_inv) > 0 and torch.equal(q.dequantize().isnan(), x.isnan())
    )


def test_amax_is_of_absolute_values():  # BR-105
    assert float(torch.ops.fp8amp.amax(torch.tensor([-3.0, 1.0]))) == 3.0


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[1:, 3:],
        lambda x: x[:1].expand(4, 24),
        lambda x: x.reshape(2, 3, 2, 24).contiguous(memory_format=torch.channels_last),
    ],
)
@pytest.mark.parametrize("format", FORMATS)
def test_strides_do_not_matter(view, format):  # BR-035
    x = view(torch.randn(12, 24, generator=torch.Generator().manual_seed(3)))
    a, b = fp8amp.quantize(x, format), fp8amp.quantize(x.contiguous(), format)
    assert a.shape == x.shape and torch.equal(a.dequantize(), b.dequantize()) and a.payload.is_contiguous()


def test_a_scaled_tensor_is_cast_again_by_value():
    x = torch.randn(64, 8)
    half = fp8amp.quantize(x, "fp16", dtype=torch.bfloat16)
    again = fp8amp.quantize(half, "e5m2", scale=4.0)
    assert again.dtype is torch.bfloat16 and float(again.scale_inv) == 0.25
    assert torch.equal(code(again.payload), code(oracle(half.dequantize(torch.float32), 4.0, E5M2)))


@pytest.mark.parametrize("format", FORMATS)
def test_stochastic_rounding_is_unbiased_seeded_and_between_its_neighbours(format):
    x = torch.full((20000,), 1.0 + 2.0**-12 + 0.3 * 2.0**-10)
    one, two, other = (
        fp8amp.quantize(x, format, scale=1.0, rounding="stochastic", seed=s).dequantize() for s in (5, 5, 6)
    )
    assert torch.equal(one, two) and not torch.equal(one, other)
    step = {E4M3: 2.0**-3, E5M2: 2.0**-2, FP16: 2.0**-10}[format]
    assert set(one.tolist()) <= {1.0, 1.0 + step}
    assert abs(float((one - x).mean())) < 4 * step / math.sqrt(len(x))


def test_stochastic_rounding_never_leaves_the_format():
    q = fp8amp.quantize(torch.full((4096,), 1e9), "e4m3", scale=1.0, rounding="stochastic", seed=1)
    assert torch.equal(q.dequantize(), torch.full((4096,), 448.0))


@pytest.mark.parametrize(
    "kwargs,error,text",
    [
        (dict(x=[1.0]), TypeError, "x must be a torch.Tensor, got list"),
        (dict(x=torch.ones(2, dtype=torch.int64)), TypeError, "int64"),
        (dict(x=torch.ones(2, dtype=torch.float64)), TypeError, "float64"),
        (dict(x=torch.ones(2).to_sparse()), TypeError, "sparse"),
        (dict(format="e3m4"), ValueError, "'e3m4'"),
        (dict(format=torch.float32), ValueError, "float32"),
        (dict(scale=0.0), ValueError, "0.0"),
        (dict(scale=math.nan), ValueError, "nan"),
        (dict(scale=-1.0), ValueError, "-1"),
        (dict(scale=torch.ones(2)), ValueError, r"\(2,\)"),
        (dict(scale=torch.tensor(math.nan)), ValueError, "nan"),
        (dict(scale=torch.tensor(-1.0)), ValueError, "-1"),
        (dict(scale="1"), TypeError, "'1'"),
        (dict(scale=10**400), ValueError, "scale.*inf"),
        (dict(scale_rounding="nearest"), ValueError, "'nearest'"),
        (dict(rounding="up"), ValueError, "'up'"),
        (dict(seed=-1), ValueError, "-1"),
        (dict(seed=1.5), ValueError, "1.5"),
        (dict(dtype=torch.int8), TypeError, "int8"),
    ],
)
def test_bad_arguments_are_named(kwargs, error, text):
    with pytest.raises(error, match=text):
        fp8amp.quantize(**{"x": torch.ones(2), **kwargs})
