"""Text to tokens to batches.

Default text: what Python itself ships, the sources of the standard library with their docstrings and the
language reference behind help(). Every machine that runs Python has it: nothing is downloaded. `--data` takes
text files, directories of text, or one file of prepared tokens (.npy, or .bin of uint16 or uint32) instead.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

# Left out of the default text: tests, tables, and parts that some distributions ship apart or not at all.
SKIPPED_PARTS = {
    "__pycache__", "dist-packages", "distutils", "encodings", "ensurepip", "idlelib", "lib-dynload",
    "lib2to3", "pydoc_data", "site-packages", "sitecustomize.py", "test", "tests", "tkinter", "turtledemo",
}  # fmt: skip
SKIPPED_PREFIXES = ("config-", "_sysconfigdata")
DEFAULT_TEXT_LIMIT = 8_000_000  # characters
DEFAULT_TOKENIZER = "bpe"
DEFAULT_BPE_VOCABULARY = 1024
SEPARATOR = "\n\n\n"  # between two documents


class DataError(Exception):
    """The data cannot be used; the text says why in one line."""


class Tokenizer(Protocol):
    """Text to token numbers below vocab_size and back."""

    vocab_size: int

    def encode(self, text: str) -> np.ndarray: ...
    def decode(self, tokens: list[int]) -> str: ...


class ByteTokenizer:
    """One token per UTF-8 byte."""

    vocab_size = 256

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.uint16)

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


class BPETokenizer:
    """Byte-level BPE of the `tokenizers` package, trained once on a text and then read from cache."""

    def __init__(self, text: str, vocab_size: int, cache: Path) -> None:
        try:
            import tokenizers
        except ImportError:
            raise DataError("--tokenizer bpe needs the package tokenizers: pip install tokenizers") from None
        if vocab_size < 256:
            raise DataError(f"--vocab-size of a BPE must be at least 256, one for every byte, got {vocab_size}")
        file = cache / f"bpe-{vocab_size}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        if file.exists():
            self._model = tokenizers.Tokenizer.from_file(str(file))
        else:
            self._model = self._train(tokenizers, text, vocab_size)
            cache.mkdir(parents=True, exist_ok=True)
            self._model.save(str(file))
        self.vocab_size: int = self._model.get_vocab_size()

    @staticmethod
    def _train(tokenizers: Any, text: str, vocab_size: int) -> Any:
        model = tokenizers.Tokenizer(tokenizers.models.BPE())
        model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        model.train_from_iterator(text.split(SEPARATOR), trainer)
        return model

    def encode(self, text: str) -> np.ndarray:
        documents = self._model.encode_batch([part + SEPARATOR for part in text.split(SEPARATOR)])
        return np.concatenate([np.asarray(document.ids, dtype=np.uint32) for document in documents])

    def decode(self, tokens: list[int]) -> str:
        return str(self._model.decode(tokens))


def python_documents() -> Iterator[tuple[str, str]]:
    """(name, text) of the standard library's sources and of the language reference's topics."""
    root = Path(sysconfig.get_path("stdlib"))
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).parts
        if SKIPPED_PARTS.isdisjoint(parts) and not parts[0].startswith(SKIPPED_PREFIXES):
            yield "/".join(parts), file.read_text(encoding="utf-8", errors="replace")
    try:
        from pydoc_data.topics import topics
    except ImportError:  # a minimal Python
        return
    for name, text in topics.items():
        yield f"topic {name}", text


def utf8_text(file: Path) -> str | None:
    """The content of a file, None where it is not text."""
    content = file.read_bytes()
    try:
        return None if b"\0" in content else content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def text_documents(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """(name, text) of the files given, and of every UTF-8 text file below the directories given."""
    for path in paths:
        if path.is_file():
            text = utf8_text(path)
            if text is None:
                raise DataError(f"--data: {path} is not UTF-8 text")
            yield path.name, text
            continue
        for file in path.rglob("*"):
            name = file.relative_to(path)
            if not file.is_file() or any(part.startswith(".") for part in name.parts):
                continue
            text = utf8_text(file)
            if text is not None:
                yield name.as_posix(), text


def join_documents(documents: Iterable[tuple[str, str]]) -> str:
    """One text, documents ordered by the hash of their names.

    That order is the same everywhere, and makes the end of the text, which validates, a fair sample of it.
    """
    ordered = sorted(documents, key=lambda item: hashlib.sha256(item[0].encode()).digest())
    return SEPARATOR.join(text.strip() for _, text in ordered if text.strip())


@dataclass(frozen=True)
class Data:
    """Token arrays for training and validation, and how to read them."""

    train: np.ndarray
    val: np.ndarray
    vocab_size: int
    tokenizer: Tokenizer | None  # None: prepared tokens, whose text is not known
    bytes_per_token: float | None  # mean UTF-8 bytes of a validation token: compares losses between tokenizers
    fingerprint: str  # of the tokens, so that a resumed run can tell whether it sees the same data

    def __str__(self) -> str:
        unit = f" of {self.bytes_per_token:.2f} bytes" if self.bytes_per_token else ""
        return (
            f"{len(self.train):,} tokens{unit} to train, {len(self.val):,} to validate, "
            f"vocabulary {self.vocab_size}, fingerprint {self.fingerprint}"
        )


def load(
    paths: list[Path],
    *,
    tokenizer: str | None,
    vocab_size: int | None,
    cache: Path,
    token_dtype: str,
    val_fraction: float,
    block_size: int,
) -> Data:
    """Read the data, keep the last val_fraction of it for validation, and tokenize both parts.

    tokenizer is "byte" or "bpe", None for DEFAULT_TOKENIZER and where the data are tokens; a trained BPE is kept
    in the directory cache. token_dtype is that of a .bin file. Both parts must be longer than block_size.
    DataError: the data cannot be used, or an option would have no effect on it.
    """
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise DataError(f"--data: there is no file or directory {missing[0]}")
    prepared = [path for path in paths if path.suffix in (".npy", ".bin") and path.is_file()]
    if prepared and len(paths) > 1:
        raise DataError(f"--data: the token file {prepared[0]} must come alone, got {len(paths)} paths")
    if prepared and tokenizer is not None:
        raise DataError(f"--tokenizer {tokenizer} is for text, {prepared[0]} holds tokens")
    if not prepared and tokenizer == "byte" and vocab_size is not None:
        raise DataError(f"--vocab-size {vocab_size} is for --tokenizer bpe or a token file; bytes have 256")
    if token_dtype != "uint16" and [path.suffix for path in prepared] != [".bin"]:
        raise DataError(f"--token-dtype {token_dtype} is for a .bin file")
    if prepared:
        data = _load_prepared(prepared[0], vocab_size, token_dtype, val_fraction)
    else:
        data = _load_text(paths, tokenizer or DEFAULT_TOKENIZER, vocab_size, cache, val_fraction)
    if min(len(data.train), len(data.val)) <= block_size:
        sizes = f"{len(data.train)} tokens to train, {len(data.val)} to validate"
        raise DataError(f"--data: too little of it: {sizes}; both must be more than --block-size {block_size}")
    return data


def _load_text(paths: list[Path], tokenizer: str, vocab_size: int | None, cache: Path, val_fraction: float) -> Data:
    if paths:
        text = join_documents(text_documents(paths))
    else:
        text = join_documents(python_documents())[:DEFAULT_TEXT_LIMIT]
    split = int(len(text) * (1 - val_fraction))
    reader: Tokenizer = ByteTokenizer()
    if tokenizer == "bpe":
        reader = BPETokenizer(text[:split], vocab_size or DEFAULT_BPE_VOCABULARY, cache)
    train, val = reader.encode(text[:split]), reader.encode(text[split:])
    bytes_per_token = len(text[split:].encode()) / max(1, len(val))
    return Data(train, val, reader.vocab_size, reader, bytes_per_token, fingerprint(train, val))


def _load_prepared(path: Path, vocab_size: int | None, token_dtype: str, val_fraction: float) -> Data:
    tokens: np.ndarray
    try:
        if path.suffix == ".npy":
            tokens = np.lib.format.open_memmap(path, mode="r")
        else:
            tokens = np.memmap(path, dtype=token_dtype, mode="r")
    except Exception as error:  # numpy has many for a damaged file
        raise DataError(f"--data: {path} cannot be read as tokens: {error}") from None
    if tokens.ndim != 1 or tokens.dtype not in (np.uint16, np.uint32):
        found = f"{tokens.ndim}-D {tokens.dtype}"
        raise DataError(f"--data: {path} must be a 1-D array of uint16 or uint32, got {found}")
    highest = int(tokens.max(initial=0))
    if vocab_size is not None and highest >= vocab_size:
        raise DataError(f"--vocab-size {vocab_size} is too small: {path} holds token {highest}")
    split = int(len(tokens) * (1 - val_fraction))
    train, val = tokens[:split], tokens[split:]
    return Data(train, val, vocab_size or highest + 1, None, None, fingerprint(train, val))


def fingerprint(*arrays: np.ndarray) -> str:
    """Sixteen digits over length and content; of a large array, over 4096 evenly spaced pieces of it."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str(len(array)).encode())
        for start in range(0, len(array), max(1024, len(array) // 4096)):
            digest.update(array[start : start + 1024].astype("<u4").tobytes())
    return digest.hexdigest()[:16]


def windows(tokens: np.ndarray, starts: Iterable[int], block_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and targets, int64 [starts, block_size]; the targets are the inputs moved on by one."""
    rows = np.stack([tokens[start : start + block_size + 1] for start in starts]).astype(np.int64)
    batch = torch.from_numpy(rows).to(device)
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


class RandomBatches:
    """Windows at random places of the training tokens. The whole state is that of one generator."""

    def __init__(self, tokens: np.ndarray, batch_size: int, block_size: int, seed: int, device: torch.device) -> None:
        self.tokens, self.batch_size, self.block_size, self.device = tokens, batch_size, block_size, device
        self.generator = torch.Generator().manual_seed(seed)

    def next(self) -> tuple[Tensor, Tensor]:
        high = len(self.tokens) - self.block_size
        starts = torch.randint(high, (self.batch_size,), generator=self.generator)
        return windows(self.tokens, starts.tolist(), self.block_size, self.device)


def validation_batches(
    tokens: np.ndarray, count: int, batch_size: int, block_size: int, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """count batches of evenly spaced windows: the same ones for every seed and precision."""
    starts = np.linspace(0, len(tokens) - block_size - 1, count * batch_size).astype(int)
    return [windows(tokens, part.tolist(), block_size, device) for part in np.split(starts, count)]
