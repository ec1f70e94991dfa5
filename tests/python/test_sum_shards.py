"""The sum of FP8 shards: the local half of a two-shot all-reduce."""

import fp8amp
import pytest
import torch
from fp8amp import _ops
from twins import E4M3, E5M2


def shard(*values, format=E4M3):
    payload, scale_inv, amax = _ops.quantize(torch.tensor(values), None, format)
    return payload, scale_inv, amax


def average(*shards, format=E4M3, **options):
    payload, scale_inv, amax = _ops.sum_shards(
        [s[0] for s in shards], [s[1] for s in shards], format, factor=1 / len(shards), **options
    )
    return _ops.dequantize(payload, scale_inv, torch.float32), amax


def test_averages():
    assert average(shard(1.0), shard(3.0))[0].item() == pytest.approx(2.0, abs=1 / 16)
    assert average(shard(0.0), shard(3.0))[0].item() == 1.5
    assert average(*[shard(1.0)] * 64)[0].item() == 1.0


def test_rows_of_one_payload_under_a_bound():
    torch.manual_seed(2)
    grads = torch.randn(8, 1000) * torch.logspace(-3, 0, 8)[:, None]
    shards = [shard(*row.tolist()) for row in grads]
    payload = torch.stack([s[0] for s in shards])
    bound = torch.stack([s[2] for s in shards]).sum() / 8
    out, scale_inv, amax = _ops.sum_shards(payload.unbind(), [s[1] for s in shards], E4M3, factor=1 / 8, bound=bound)
    want = sum(_ops.dequantize(s[0], s[1], torch.float32) for s in shards) / 8
    got = _ops.dequantize(out, scale_inv, torch.float32)
    assert amax == want.abs().max() and amax <= bound * 1.07
    assert torch.all((got - want).abs() <= want.abs() / 16 + scale_inv * 2.0**-10)


def test_a_bad_rank_shows():
    bad = shard(1.0, float("inf"), format=E5M2)
    result, amax = average(bad, shard(1.0, 2.0, format=E5M2), scale=torch.tensor(1.0))
    assert result[0] == 1.0
    nan = (torch.tensor([0x38, 0x7F], dtype=torch.uint8).view(E4M3), torch.ones(()))
    result, amax = average(nan, shard(1.0, 2.0))
    assert result[0] == 1.0 and result[1].isnan() and amax.isnan()


def test_bad_input():
    with pytest.raises(ValueError, match="sum_shards: shards must not be empty, got 0"):
        _ops.sum_shards([], [], E4M3)
    with pytest.raises(fp8amp.Error, match="sum_shards: scale_inv must have an entry for every shard, got 0 for 1"):
        _ops.sum_shards([torch.zeros(3, dtype=E4M3)], [], E4M3)
    with pytest.raises(fp8amp.Error, match="shards\\[1\\] must have shape"):
        average(shard(1.0), shard(1.0, 2.0))


def test_it_can_be_traced():
    fake = torch._subclasses.FakeTensorMode()
    with fake:
        payload, scale_inv, amax = _ops.sum_shards(
            [torch.empty(4, 5, dtype=E4M3)] * 2, [torch.empty(())] * 2, E5M2, factor=0.5
        )
    assert payload.shape == (4, 5) and payload.dtype is E5M2 and scale_inv.shape == amax.shape == ()
