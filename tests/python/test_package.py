"""The package itself: names, build information, the command line, errors from C++, the NumPy core."""

import pickle
import subprocess
import sys
from pathlib import Path

import fp8amp
import pytest
import torch
from fp8amp import _ops


def test_public_names():
    for name in fp8amp.__all__:
        assert getattr(fp8amp, name) is not None
    assert (Path(fp8amp.__file__).parent / "py.typed").exists()
    with pytest.raises(AttributeError, match="nothing"):
        _ = fp8amp.nothing


def test_build_info_and_command_line():
    info = fp8amp.build_info()
    assert info["version"] == fp8amp.__version__ and info["isa"] in ("baseline", "v2", "v3", "v4")
    assert isinstance(info["cuda"]["built"], bool) and info["cuda"]["status"] and info["cublaslt"] and info["nccl"]
    out = subprocess.run([sys.executable, "-m", "fp8amp"], capture_output=True, text=True, check=True).stdout
    for word in (fp8amp.__version__, info["isa"], "cuda", "cublaslt", "nccl", torch.__version__):
        assert word in out


def test_import_patches_nothing_in_torch():
    """Importing fp8amp changes no function of torch, torch.nn, torch.optim or Tensor."""
    program = """
import torch, torch.nn as nn, torch.optim
def names():
    spaces = [torch, torch.Tensor, nn, nn.functional, nn.Module, nn.Linear, nn.Parameter, torch.optim,
              torch.optim.Optimizer, torch.optim.AdamW, torch.optim.Adam, torch.utils, torch.autograd, torch.nn.utils]
    return {(s.__name__, k): id(v) for s in spaces for k, v in vars(s).items() if callable(v)}
before = names()
import fp8amp
after = names()
print([k for k in before if after.get(k) != before[k]])
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_errors_of_the_library_are_fp8amp_errors():
    with pytest.raises(fp8amp.Error, match="quantize"):
        _ops.quantize(torch.ones(3, dtype=torch.int32), None, torch.float8_e4m3fn)
    assert issubclass(fp8amp.Error, RuntimeError)
    assert str(pickle.loads(pickle.dumps(fp8amp.Error("x")))) == "x"


@pytest.mark.parametrize("name", ["quantize", "gemm", "dequantize", "amax", "accumulate_"])
def test_fake_kernels_agree_with_the_real_ones(name):
    x = torch.randn(8, 16)
    q, s, _ = _ops.quantize(x, None, torch.float8_e4m3fn)
    one = torch.ones(())
    args = {
        "quantize": (x, None, torch.float8_e5m2, None, 0, 0, 0, 0, 0, False),
        "gemm": (q, s, q, s, False, True, torch.bfloat16, None, False, 0),
        "dequantize": (q, s, torch.float16),
        "amax": (x,),
        "accumulate_": (q, s, x, one),
    }[name]
    torch.library.opcheck(getattr(torch.ops.fp8amp, name).default, args, test_utils=("test_faketensor",))
