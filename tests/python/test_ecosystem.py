"""Models and tools around torch: GPT-2 of transformers with its Conv1D and tied head, peft, and plain torch modules.

Each part runs where the package is installed; none is needed.
"""

import fp8amp
import pytest
import torch
from fp8amp import ScaledTensor
from torch import nn
from twins import batch, dense, is_fp8


def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def test_gpt2_converts_its_conv1d_layers_and_trains(tmp_path):
    model, tokens = gpt2(), torch.arange(24).reshape(2, 12)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fp8amp.initialize(model, opt, "O2")
    layers = fp8amp.fp8_layers(model)
    assert len(layers) == 8 and all(isinstance(m, fp8amp.nn.Conv1D) for m in layers.values())
    assert model.lm_head.weight is model.transformer.wte.weight and type(model.lm_head) is nn.Linear
    losses = []
    for _ in range(20):
        opt.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        fp8amp.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0] and all(is_fp8(m.weight.grad) for m in layers.values())
    model.eval()
    assert model.generate(tokens[:, :4], max_new_tokens=4, do_sample=False, pad_token_id=0).shape == (2, 8)
    model.save_pretrained(tmp_path)
    back = type(model).from_pretrained(tmp_path)
    assert torch.equal(back.transformer.h[0].attn.c_attn.weight, dense(model.transformer.h[0].attn.c_attn.weight))
    plain = fp8amp.to_dense(model)
    assert not fp8amp.fp8_layers(plain) and torch.allclose(plain(tokens).logits, back(tokens).logits, atol=1e-5)


def test_gpt2_gradient_checkpointing():
    model, tokens = gpt2(), torch.arange(24).reshape(2, 12)
    fp8amp.initialize(model)
    model.train()
    model.gradient_checkpointing_enable()
    model(tokens, labels=tokens).loss.backward()
    assert all(is_fp8(m.weight.grad) for m in fp8amp.fp8_layers(model).values())


def test_peft_wraps_converted_layers():
    peft = pytest.importorskip("peft")
    model = nn.Sequential()
    model.add_module("first", nn.Linear(32, 32))
    fp8amp.initialize(model)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["first"], r=4))
    wrapped(batch(1, 4, 32)).sum().backward()
    trained = [name for name, p in wrapped.named_parameters() if p.grad is not None]
    assert trained and all("lora" in name for name in trained)
    assert isinstance(wrapped.merge_and_unload().first.weight, ScaledTensor)


def test_transformer_encoder_layer_trains_and_evaluates():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    fp8amp.initialize(model)
    assert set(fp8amp.fp8_layers(model)) == {"linear1", "linear2"}
    x = torch.randn(2, 5, 32)
    y = model(x)
    y.sum().backward()
    assert is_fp8(model.linear1.weight.grad)
    with torch.no_grad():
        assert torch.allclose(model.eval()(x), y, atol=0.1)


def test_parametrized_and_weight_normed_layers_are_left_alone():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)),
        nn.utils.spectral_norm(nn.Linear(16, 16)),
        nn.Linear(16, 16),
    )
    fp8amp.initialize(model)
    assert list(fp8amp.fp8_layers(model)) == ["2"]
    model(batch()).sum().backward()


def test_functional_call_and_vmap_free_transforms():
    model = fp8amp.initialize(nn.Linear(16, 16))
    weights = {name: 2 * dense(p) for name, p in model.named_parameters()}
    got = torch.func.functional_call(model, weights, batch())
    assert torch.allclose(got, 2 * model(batch()), rtol=1e-5, atol=1e-5)
