"""Small runs of examples/gpt for its tests: a pytest plugin with the fixtures text and run, and helpers."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gpt"))

import train


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
        if "--tokenizer" not in options:
            small += ["--tokenizer", "byte"]  # there is too little text for BPE
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


def contents(folder):
    """Every file below a folder, with its bytes."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


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
