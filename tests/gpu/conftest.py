"""`pytest tests/gpu --device cuda` compares the CUDA backend with the CPU backend; `--device cpu`, the default where
there is no GPU, only shows that the tests themselves run."""

from collections.abc import Iterator

import pytest
import torch
from guarded import Guards


def pytest_addoption(parser: pytest.Parser) -> None:
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.addoption("--device", default=default, choices=("cpu", "cuda"))


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.config.getoption("--device"))


@pytest.fixture
def guards(device: torch.device) -> Iterator[Guards]:
    """Copies on the device with guard zones, which are looked at when the test ends."""
    guards = Guards(device)
    yield guards
    guards.check()
