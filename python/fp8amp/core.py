"""The torch-free part of the library for NumPy users: formats, recipe metadata, versions, quantize, dequantize and
gemm on arrays.

Everything here comes from the extension module ``fp8amp._core`` (pybind11). It shares its C++ code with the torch ops.
"""

from __future__ import annotations

import importlib
from typing import Any

try:
    _core: Any = importlib.import_module("fp8amp._core")
except ImportError as error:
    raise ImportError(f"fp8amp.core needs the extension module fp8amp._core, which did not load: {error}") from error

__all__ = sorted(name for name in dir(_core) if not name.startswith("_"))


def __getattr__(name: str) -> Any:
    return getattr(_core, name)


def __dir__() -> list[str]:
    return __all__
