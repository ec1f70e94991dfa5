"""examples/gpt: what a run leaves, exact resume, comparison, data."""

import json

import numpy as np
import pytest
import torch
from gpt_runs import assert_same, metrics

import data as gpt_data

pytest_plugins = ("gpt_runs",)

SUMMARY_KEYS = {
    "precision", "parameters", "final_val_loss", "tokens_per_second", "bytes_per_parameter", "steps", "seed",
    "torch", "fp8amp", "isa", "peak_memory_bytes", "data", "block_size", "batch_size", "threads", "device",
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16", "O1", "O2"])
def test_run_leaves_numbers_and_plots(run, tmp_path, precision):
    assert run("--precision", precision, "--out", tmp_path, "--steps", 20, "--eval-every", 10)[0] == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert SUMMARY_KEYS <= summary.keys()
    rows = metrics(tmp_path)
    assert [row["step"] for row in rows] == list(range(21))
    assert [row["step"] for row in rows if "val_loss" in row] == [0, 10, 20]
    assert summary["final_val_loss"] == rows[-1]["val_loss"] < rows[0]["val_loss"] - 1
    assert summary["precision"] == precision and summary["steps"] == 20
    bytes_expected = {"fp32": 16.0, "bf16": 16.0, "O1": 11.0, "O2": 6.0}[precision]
    assert bytes_expected <= summary["bytes_per_parameter"] < bytes_expected + 0.01
    assert (tmp_path / "memory.txt").read_text().strip()
    assert (tmp_path / "sample.txt").exists()
    pytest.importorskip("matplotlib")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("precision", "accumulate"), [("fp32", 1), ("O1", 2), ("O2", 1), ("O2", 2)])
def test_resumed_run_has_the_bits_of_an_uninterrupted_one(run, tmp_path, precision, accumulate):
    same = ("--precision", precision, "--accumulate", accumulate, "--seed", 3)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(*same, "--out", whole)[0] == 0
    assert run(*same, "--out", parts, "--stop-at", 3)[0] == 0
    assert not (parts / "summary.json").exists()
    status, error = run(*same, "--out", parts, "--resume", "--stop-at", 2)
    assert status == 2 and "--stop-at 2" in error
    assert run(*same, "--out", parts, "--resume")[0] == 0
    assert metrics(whole) == metrics(parts)
    assert_same(*(torch.load(out / "checkpoint.pt") for out in (whole, parts)))


@pytest.mark.parametrize("precision", ["fp32", "O2"])
def test_activation_checkpointing_changes_no_bit(run, tmp_path, precision):
    plain, recomputed = tmp_path / "plain", tmp_path / "recomputed"
    run("--precision", precision, "--out", plain)
    run("--precision", precision, "--out", recomputed, "--activation-checkpointing")
    assert metrics(plain) == metrics(recomputed)


def test_fused_blocks_learn_and_resume(run, tmp_path):
    assert run("--precision", "O2", "--fused", "--out", tmp_path / "whole", "--steps", 20)[0] == 0
    assert run("--precision", "O2", "--fused", "--out", tmp_path / "parts", "--steps", 20, "--stop-at", 3)[0] == 0
    assert run("--precision", "O2", "--fused", "--out", tmp_path / "parts", "--steps", 20, "--resume")[0] == 0
    rows = metrics(tmp_path / "whole")
    assert rows == metrics(tmp_path / "parts")
    assert run("--precision", "O2", "--out", tmp_path / "plain", "--steps", 20)[0] == 0
    plain = metrics(tmp_path / "plain")
    assert rows != plain
    assert (
        rows[-1]["val_loss"] == pytest.approx(plain[-1]["val_loss"], rel=0.02)
        and rows[-1]["val_loss"] < rows[0]["val_loss"] - 1
    )


def test_two_accumulated_batches_are_one_of_twice_the_size(run, tmp_path):
    run("--precision", "fp32", "--out", tmp_path / "a", "--batch-size", 4, "--accumulate", 2)
    run("--precision", "fp32", "--out", tmp_path / "b", "--batch-size", 8)
    losses = [[row["loss"] for row in metrics(tmp_path / name) if "loss" in row] for name in ("a", "b")]
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_comparison_plots_the_runs_together(run, tmp_path):
    assert run("--compare", "fp32", "O2", "--out", tmp_path)[0] == 0
    summaries = json.loads((tmp_path / "summary.json").read_text())
    assert [row["precision"] for row in summaries] == ["fp32", "O2"]
    table = (tmp_path / "comparison.txt").read_text().splitlines()
    assert len(table) == 3 and table[2].split()[0] == "O2"
    assert len(metrics(tmp_path / "fp32")) == len(metrics(tmp_path / "O2")) == 7
    pytest.importorskip("matplotlib")
    assert (tmp_path / "loss.png").exists()


def load(paths, cache, **changed):
    tokens = paths[0].suffix in (".npy", ".bin")
    settings = {"tokenizer": None if tokens else "byte", "vocab_size": None, "token_dtype": "uint16"} | changed
    return gpt_data.load(paths, cache=cache, val_fraction=0.1, block_size=8, **settings)


def test_default_text_is_pythons_own_and_repeats():
    documents = dict(gpt_data.python_documents())
    assert "argparse.py" in documents
    assert not any(name.startswith(("test/", "site-packages/")) for name in documents)
    joined = gpt_data.join_documents(documents.items())
    assert joined == gpt_data.join_documents(reversed(documents.items()))
    assert len(joined) > 2_000_000


def test_directory_is_read_but_for_what_is_no_text(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a.md").write_text("äöü " * 40)
    (tmp_path / "b.txt").write_text("plain " * 40)
    (tmp_path / "c.bin").write_bytes(bytes(range(256)))
    (tmp_path / ".hidden").write_text("hidden")
    names = {name for name, _ in gpt_data.text_documents([tmp_path])}
    assert names == {"deep/er/a.md", "b.txt"}
    data = load([tmp_path], tmp_path)
    read = data.tokenizer.decode([*data.train, *data.val])
    assert "äöü" in read and "plain" in read


def test_files_that_are_no_text_are_refused(tmp_path, text):
    np.save(tmp_path / "tokens.npy", np.arange(1000, dtype=np.uint16))
    (tmp_path / "image.png").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "utf16.txt").write_text("a text " * 100, encoding="utf-16")
    (tmp_path / "latin1.txt").write_text("ä text " * 100, encoding="latin-1")
    for paths in (["tokens.npy", text], [text, "tokens.npy"]):
        with pytest.raises(gpt_data.DataError, match=r"tokens\.npy.* alone"):
            load([tmp_path / path for path in paths], tmp_path)
    for name in ("image.png", "utf16.txt", "latin1.txt"):
        with pytest.raises(gpt_data.DataError, match=f"{name} .*UTF-8"):
            load([text, tmp_path / name], tmp_path)


def test_damaged_token_files_are_refused(tmp_path):
    np.save(tmp_path / "good.npy", np.arange(1000, dtype=np.uint16))
    good = (tmp_path / "good.npy").read_bytes()
    bad = {"empty.bin": b"", "odd.bin": b"123", "empty.npy": b"", "no.npy": b"123" * 100}
    bad |= {"cut.npy": good[:500], "header.npy": good[:20] + b"}{" + good[22:], "start.npy": good[:20]}
    bad |= {"huge.npy": good.replace(b"(1000,)", b"(9" + b"9" * 30 + b",)")}
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(gpt_data.DataError, match=name):
            load([tmp_path / name], tmp_path)
    np.savez(tmp_path / "archive.npz", np.arange(1000, dtype=np.uint16))
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object))
    np.save(tmp_path / "scalar.npy", np.uint16(1))
    for name in ("archive.npy", "objects.npy", "scalar.npy"):
        with pytest.raises(gpt_data.DataError, match=name):
            load([tmp_path / name], tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("words.txt", {"vocab_size": 256}, "--vocab-size"),
        ("words.txt", {"token_dtype": "uint32"}, "--token-dtype"),
        ("tokens.npy", {"token_dtype": "uint32"}, "--token-dtype"),
        ("tokens.npy", {"tokenizer": "bpe"}, "--tokenizer"),
        ("tokens.bin", {"tokenizer": "bpe"}, "--tokenizer"),
    ],
)
def test_option_that_would_be_ignored_is_refused(tmp_path, name, options, named):
    (tmp_path / "words.txt").write_text("words " * 1000)
    np.save(tmp_path / "tokens.npy", np.arange(1000, dtype=np.uint16))
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    with pytest.raises(gpt_data.DataError, match=named):
        load([tmp_path / name], tmp_path, **options)


def test_bpe_reads_back_and_is_trained_once(tmp_path, text):
    pytest.importorskip("tokenizers")
    data = load([text], tmp_path, tokenizer="bpe", vocab_size=300)
    (cached,) = tmp_path.glob("bpe-*.json")
    assert data.vocab_size <= 300 and data.bytes_per_token > 1
    whole = text.read_text().strip()
    assert data.tokenizer.decode(data.train.tolist()).strip() == whole[: int(len(whole) * 0.9)].strip()
    changed = cached.stat().st_mtime_ns
    assert load([text], tmp_path, tokenizer="bpe", vocab_size=300).fingerprint == data.fingerprint
    assert cached.stat().st_mtime_ns == changed


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_prepared_tokens(tmp_path, dtype):
    tokens = np.arange(1000, dtype=dtype) % 77
    np.save(tmp_path / "tokens.npy", tokens)
    tokens.tofile(tmp_path / "tokens.bin")
    a = load([tmp_path / "tokens.npy"], tmp_path)
    b = load([tmp_path / "tokens.bin"], tmp_path, token_dtype=dtype)
    assert a.fingerprint == b.fingerprint and a.vocab_size == b.vocab_size == 77
    assert (len(a.train), len(a.val)) == (900, 100)
    with pytest.raises(gpt_data.DataError, match="--vocab-size 50"):
        load([tmp_path / "tokens.npy"], tmp_path, vocab_size=50)
    np.save(tmp_path / "wrong.npy", tokens.astype(np.float32))
    with pytest.raises(gpt_data.DataError, match="float32"):
        load([tmp_path / "wrong.npy"], tmp_path)


def test_batches_and_validation_do_not_depend_on_each_other():
    tokens = np.arange(500, dtype=np.uint16)
    cpu = torch.device("cpu")
    batches = gpt_data.RandomBatches(tokens, 4, 8, 1, cpu)
    inputs, targets = batches.next()
    assert inputs.shape == targets.shape == (4, 8) and torch.equal(inputs + 1, targets)
    state = batches.generator.get_state()
    expected = batches.next()[0]
    batches.generator.set_state(state)
    assert torch.equal(batches.next()[0], expected)
    validation = gpt_data.validation_batches(tokens, 2, 4, 8, cpu)
    assert len(validation) == 2 and validation[0][0][0, 0] == 0 and validation[1][1][-1, -1] == 499
