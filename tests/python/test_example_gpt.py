"""examples/gpt: what a run leaves, exact resume, interruption, data, refusal of bad arguments."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gpt"))

import data as gpt_data
import train
import trainer

SUMMARY_KEYS = {
    "precision", "parameters", "final_val_loss", "tokens_per_second", "bytes_per_parameter", "steps", "seed",
    "torch", "fp8amp", "isa", "peak_memory_bytes", "data", "block_size", "batch_size", "threads", "device",
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A file of text in which there is something to learn."""
    file = tmp_path_factory.mktemp("text") / "words.txt"
    words = ["scale", "amax", "rounds", "to nearest", "the moment", "a weight", "of", "and", "\n"]
    chosen = np.random.default_rng(0).choice(words, 8000)
    file.write_text(" ".join(chosen))
    return file


@pytest.fixture
def run(text, capsys, monkeypatch, request):
    """Runs train.py in this process with small settings: (exit status, stderr). Only the first test plots."""
    if "plots" not in request.node.name:
        monkeypatch.setattr(train.report, "plot_losses", lambda *_: False)

    def call(*options):
        small = "--block-size 16 --batch-size 4 --eval-batches 2 --eval-every 2 --steps 6 --sample 8".split()
        small += ["--device", "cpu", "--threads", "1", "--data", str(text)]
        try:
            status = train.main([*small, *map(str, options)])
        except SystemExit as stop:
            status = stop.code
        return status, capsys.readouterr().err.strip()

    threads = torch.get_num_threads()
    yield call
    torch.set_num_threads(threads)


def metrics(out):
    """The rows of metrics.jsonl but for the times."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def assert_same(a, b):
    """Equal bits in nested states."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        if hasattr(a, "payload"):
            assert torch.equal(a.payload.view(torch.uint8), b.payload.view(torch.uint8))
            assert torch.equal(a.scale_inv, b.scale_inv)
        else:
            assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_same(a[name], b[name])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


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
    assert run(*same, "--out", parts, "--resume")[0] == 0
    assert metrics(whole) == metrics(parts)
    assert_same(*(torch.load(out / "checkpoint.pt") for out in (whole, parts)))


def test_rows_after_the_checkpoint_are_dropped(run, tmp_path):
    """A run that was killed resumes at its last checkpoint, and the metrics show each step once."""
    same = ("--precision", "O2", "--out", tmp_path, "--checkpoint-every", 2)
    run(*same, "--stop-at", 2)
    checkpoint = (tmp_path / "checkpoint.pt").read_bytes()
    run(*same, "--resume", "--stop-at", 5)
    (tmp_path / "checkpoint.pt").write_bytes(checkpoint)
    assert run(*same, "--resume")[0] == 0
    assert [row["step"] for row in metrics(tmp_path)] == list(range(7))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_leaves_a_checkpoint(run, tmp_path, monkeypatch, number):
    step = trainer.Trainer.step

    def step_and_signal(self):
        row = step(self)
        if row["step"] == 2:
            os.kill(os.getpid(), number)
        return row

    same = ("--precision", "O2", "--out", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "step", step_and_signal)
        assert run(*same)[0] == 128 + number
    status, error = run(*same)
    assert status == 2 and "unfinished run" in error
    assert run(*same, "--resume")[0] == 0
    assert run("--precision", "O2", "--out", tmp_path / "whole")[0] == 0
    assert metrics(tmp_path / "out") == metrics(tmp_path / "whole")


def test_resume_refuses_another_run(run, tmp_path, text):
    run("--precision", "fp32", "--out", tmp_path, "--stop-at", 2)
    status, error = run("--precision", "fp32", "--out", tmp_path, "--resume", "--lr", 1e-4)
    assert status == 2 and "--lr 0.001, not 0.0001" in error
    other = tmp_path / "other.txt"
    other.write_text(text.read_text()[::-1])
    status, error = run("--precision", "fp32", "--out", tmp_path, "--resume", "--data", other)
    assert status == 2 and "--data" in error


def test_resume_of_a_finished_run_changes_nothing(run, tmp_path):
    run("--precision", "O2", "--out", tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert run("--precision", "O2", "--out", tmp_path, "--resume")[0] == 0
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


@pytest.mark.parametrize("precision", ["fp32", "O2"])
def test_activation_checkpointing_changes_no_bit(run, tmp_path, precision):
    plain, recomputed = tmp_path / "plain", tmp_path / "recomputed"
    run("--precision", precision, "--out", plain)
    run("--precision", precision, "--out", recomputed, "--activation-checkpointing")
    assert metrics(plain) == metrics(recomputed)


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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--precision", "fp16"], "--precision"),
        (["--size", "huge"], "--size"),
        (["--steps", "0"], "--steps"),
        (["--steps", "1.5"], "--steps"),
        (["--lr", "-1"], "--lr"),
        (["--lr", "nan"], "--lr"),
        (["--min-lr", "1"], "--min-lr"),
        (["--clip", "inf"], "--clip"),
        (["--seed", "-1"], "--seed"),
        (["--device", "tpu"], "--device"),
        (["--val-fraction", "1"], "--val-fraction"),
        (["--data", "no/such/file"], "--data"),
        (["--block-size", "1000000"], "--block-size"),
        (["--precision", "fp32", "--activations", "bf16"], "--activations"),
        (["--tokenizer", "bpe", "--vocab-size", "100"], "--vocab-size"),
        (["--unknown"], "--unknown"),
    ],
)
def test_bad_argument_is_refused_in_one_line(run, tmp_path, options, named):
    if "bpe" in options:
        pytest.importorskip("tokenizers")
    status, error = run("--out", tmp_path / "out", *options)
    assert status == 2
    assert named in error and error.count("\n") == 0
    assert not (tmp_path / "out" / "checkpoint.pt").exists()


def load(paths, cache, **changed):
    settings = {"tokenizer": "byte", "vocab_size": None, "token_dtype": "uint16"} | changed
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
