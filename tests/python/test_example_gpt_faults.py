"""examples/gpt: kills, signals, damaged files, a full disk, finished runs, refusal of bad arguments."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from gpt_runs import assert_same, contents, metrics

import train
import trainer

pytest_plugins = ("gpt_runs",)


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


def test_finished_run_is_kept_unless_told_otherwise(run, tmp_path):
    run("--precision", "O2", "--out", tmp_path)
    before = contents(tmp_path)
    assert run("--precision", "O2", "--out", tmp_path, "--resume")[0] == 0
    assert before == contents(tmp_path)
    status, error = run("--precision", "O2", "--out", tmp_path)
    assert status == 2 and "--overwrite" in error and error.count("\n") == 0
    assert before == contents(tmp_path)
    (tmp_path / "checkpoint.pt").unlink()
    assert run("--precision", "O2", "--out", tmp_path, "--resume")[0] == 2
    assert run("--precision", "O2", "--out", tmp_path, "--overwrite")[0] == 0
    assert contents(tmp_path).keys() == before.keys()


def test_resume_after_the_last_row_was_torn(run, tmp_path):
    same = ("--precision", "fp32", "--out", tmp_path / "parts")
    run(*same, "--stop-at", 3)
    file = tmp_path / "parts" / "metrics.jsonl"
    file.write_text(file.read_text() + '{"step": 4, "lo')
    assert run(*same, "--resume")[0] == 0
    assert run("--precision", "fp32", "--out", tmp_path / "whole")[0] == 0
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("checkpoint.pt", lambda content: content[: len(content) // 2]),
        ("checkpoint.pt", lambda content: b""),
        ("checkpoint.pt", lambda content: b"no checkpoint" * 1000),
        ("metrics.jsonl", lambda content: b"{\n" + content),
        ("metrics.jsonl", lambda content: b"\0" * len(content) + b"\n"),
        ("metrics.jsonl", lambda content: b"[]\n" + content),
    ],
)
def test_resume_refuses_a_damaged_file(run, tmp_path, name, damage):
    run("--precision", "fp32", "--out", tmp_path, "--stop-at", 2)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    before = contents(tmp_path)
    status, error = run("--precision", "fp32", "--out", tmp_path, "--resume")
    assert status == 2 and name in error and error.count("\n") == 0
    assert before == contents(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["checkpoint", "metrics"])
def test_full_disk_keeps_what_was_there(run, tmp_path, name):
    same = ("--precision", "fp32", "--out", tmp_path, "--resume")
    run(*same, "--stop-at", 2)
    before = contents(tmp_path)
    (tmp_path / f"{name}.part").symlink_to("/dev/full")
    status, error = run(*same, "--stop-at", 4)
    assert status == 2 and "No space left" in error and error.count("\n") == 0
    assert before["checkpoint.pt"] == (tmp_path / "checkpoint.pt").read_bytes()
    assert (tmp_path / "metrics.jsonl").read_bytes().startswith(before["metrics.jsonl"])


def killed(run, options, kill):
    """Runs train.py in a forked process, in which kill() prepares its death by SIGKILL or which outlives it."""
    child = os.fork()
    if child == 0:
        try:
            kill()
            run(*options)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, "the forked process failed"
    return os.WIFSIGNALED(status)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def torn_save(save, number):
    """A torch.save that dies in the middle of its call of that number."""
    calls = iter(range(1, 1000))

    def call(content, file):
        save(content, file)
        if next(calls) == number:
            file.truncate(file.tell() // 2)
            die()

    return call


def test_killed_run_resumes_to_the_same_bits(run, tmp_path):
    """SIGKILL within each checkpoint, around its renaming, within a row, between the last files, at random times."""
    same = ("--precision", "O2", "--checkpoint-every", 2, "--steps", 5)
    start = time.monotonic()
    assert run(*same, "--out", tmp_path / "whole")[0] == 0
    seconds = time.monotonic() - start

    def in_save(number):
        torch.save = torn_save(torch.save, number)

    def at_rename(number, renamed):
        calls, replace = iter(range(1, 1000)), os.replace

        def call(*names):
            now = next(calls) == number
            if now and not renamed:
                die()
            replace(*names)
            if now:
                die()

        os.replace = call

    def in_row(step):
        add = train.report.Metrics.add

        def call(self, row):
            if row["step"] == step:
                self._file.write(json.dumps(row)[:9])
                self._file.flush()
                die()
            add(self, row)

        train.report.Metrics.add = call

    def after(delay):
        signal.signal(signal.SIGALRM, die)
        signal.setitimer(signal.ITIMER_REAL, delay)

    # renamed are metrics.jsonl, the checkpoints of steps 2, 4 and 5, summary.json
    moments = [(in_save, 1), (in_save, 3), (in_row, 0), (in_row, 3)]
    moments += [(at_rename, 1, False), (at_rename, 2, True), (at_rename, 4, True), (at_rename, 5, False)]
    moments += [(after, random.uniform(0, seconds)) for _ in range(4)]
    for index, (kill, *arguments) in enumerate(moments):
        out = tmp_path / str(index)
        died = killed(run, (*same, "--out", out), lambda: kill(*arguments))  # noqa: B023 (called at once)
        assert died or kill is after, (kill, arguments)
        assert run(*same, "--out", out, "--resume")[0] == 0, (kill, arguments)
        assert metrics(out) == metrics(tmp_path / "whole"), (kill, arguments)
        assert_same(*(torch.load(folder / "checkpoint.pt") for folder in (out, tmp_path / "whole")))
        assert contents(out).keys() == contents(tmp_path / "whole").keys()


def test_comparison_does_not_show_old_runs_as_new_ones(run, tmp_path, monkeypatch):
    """A child that fails after an earlier comparison: its status, and no table."""
    summary = {"precision": "fp32", "final_val_loss": 1.0, "tokens_per_second": 1.0}
    summary |= {"bytes_per_parameter": 16.0, "peak_memory_bytes": 1}
    (tmp_path / "fp32").mkdir()
    (tmp_path / "fp32" / "summary.json").write_text(json.dumps(summary))
    for status in (0, train.DIVERGED, 1, 2, -9):
        code = f"import os, signal; os.kill(os.getpid(), 9) if {status} < 0 else os._exit({status})"
        monkeypatch.setattr(train, "command", lambda *_, code=code: [sys.executable, "-c", code])
        shown = status in (0, train.DIVERGED)
        expected = 0 if shown else 137 if status < 0 else status
        assert run("--compare", "fp32", "--out", tmp_path)[0] == expected
        assert (tmp_path / "comparison.txt").exists() == shown
        (tmp_path / "comparison.txt").unlink(missing_ok=True)


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
        (["--precision", "fp32", "--fused"], "--fused"),
        (["--compare", "O1", "bf16", "--fused"], "--fused"),
        (["--tokenizer", "bpe", "--vocab-size", "100"], "--vocab-size"),
        (["--size", "175b"], "GiB"),
        (["--unknown"], "--unknown"),
        (["--device", "cpu:abc"], "--device"),
        (["--seed", str(2**63), "--precision", "O2"], "--seed"),
        (["--seed", str(2**64)], "--seed"),
        (["--threads", str(2**40)], "--threads"),
        (["--eval-batches", str(10**30)], "--eval-batches"),
        (["--vocab-size", "5"], "--vocab-size"),
        (["--token-dtype", "uint32"], "--token-dtype"),
        (["--out", __file__], "--out"),
        (["--out", f"{__file__}/below/a/file"], "--out"),
        (["--out", "/proc/none"], "--out"),
        (["--out", "x" * 300], "--out"),
    ],
)
def test_bad_argument_is_refused_in_one_line(run, tmp_path, options, named):
    if "bpe" in options:
        pytest.importorskip("tokenizers")
    status, error = run("--out", tmp_path / "out", *options)
    assert status == 2
    assert named in error and error.count("\n") == 0
    assert not (tmp_path / "out" / "checkpoint.pt").exists()


def test_setup_completes_an_interrupted_environment(tmp_path):
    """.ci/setup.sh where `python -m venv`, here a stand-in for it, was stopped before it made pip."""
    root, python = Path(__file__).resolve().parents[2], tmp_path / "python"
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    python.write_text('#!/bin/sh\n[ "$1 $2" != "-m venv" ] || cp "$0" "$3/bin/pip"\n')
    python.chmod(0o755)
    setup = "install_packages() { :; }; changed() { false; }; fp8amp_setup"
    environment = os.environ | {"FP8AMP_VENV": str(tmp_path / "venv"), "PYTHON": str(python)}
    script = f"root={root}; source {root}/.ci/setup.sh; {setup}"
    subprocess.run(["bash", "-euc", script], env=environment, check=True)
    assert (tmp_path / "venv" / "bin" / "pip").exists()
