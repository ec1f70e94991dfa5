"""The training loop: one Trainer is one run, from its start or its checkpoint to its last step."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import report
from data import Data, RandomBatches, validation_batches
from model import GPT, SIZES, Block, Size, parameter_groups
from options import O_LEVELS, Refused

# Options that may change between the parts of an interrupted run. --steps and --warmup stretch the schedule.
MAY_CHANGE = {
    "checkpoint_every", "data", "eval_batches", "eval_every", "log_every", "out", "overwrite", "resume",
    "sample", "steps", "stop_at", "tensorboard", "threads", "warmup",
}  # fmt: skip


class Interrupted(Exception):
    """A signal or --stop-at ended the run early; its checkpoint is written."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(step, signal_number)
        self.step, self.signal_number = step, signal_number

    def __str__(self) -> str:
        return f"stopped after step {self.step}; --resume goes on from here"


class Signals:
    """Turns the first Ctrl-C or SIGTERM into a wish to stop; a second one ends the process as usual."""

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.received = number
        signal.signal(number, self._before[number])


def import_fp8amp(reason: str) -> ModuleType:
    """The package, which FP32 and BF16 runs do without."""
    try:
        import fp8amp
    except ImportError as error:
        raise Refused(f"{reason} needs the package fp8amp, and importing it fails: {error}") from None
    return fp8amp


def fused_block() -> type[Block]:
    """The block whose norms and GELU write FP8 operands."""
    import_fp8amp("--fused")
    from fused_block import FusedBlock

    return FusedBlock


def model_size(arguments: Namespace) -> Size:
    """The named size, with the context of --block-size where that is given."""
    size = SIZES[arguments.size]
    return Size(size.layers, size.heads, size.width, arguments.block_size or size.block_size)


def check_fits(size: Size, name: str, vocab_size: int, device: torch.device) -> None:
    """Refuses a model whose FP32 weights alone are more than the memory there is."""
    with torch.device("meta"):
        parameters = sum(p.numel() for p in GPT(size, vocab_size).parameters())
    cuda = device.type == "cuda"
    memory = torch.cuda.mem_get_info(device)[1] if cuda else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * parameters > memory:
        raise Refused(
            f"--size {name} with a vocabulary of {vocab_size:,} has {parameters:,} parameters, "
            f"{4 * parameters / 2**30:,.0f} GiB in FP32; {device} has {memory / 2**30:,.0f} GiB"
        )


class Trainer:
    """Model, optimizer, data and position of a run."""

    def __init__(
        self,
        arguments: Namespace,
        data: Data,
        level_options: dict[str, Any],
        convert: Callable[[nn.Module], Any] | None = None,
    ) -> None:
        """level_options go to fp8amp.initialize as they are; convert changes the model in place, before that."""
        self.arguments, self.data, self.level_options = arguments, data, level_options
        self.device, self.out = torch.device(arguments.device), Path(arguments.out)
        self.step_number = 0
        self.saved_step = -1  # of the checkpoint
        self.memory_before = report.memory_in_use(self.device)
        size = model_size(arguments)
        torch.manual_seed(arguments.seed)
        check_fits(size, arguments.size, data.vocab_size, self.device)
        block = fused_block() if arguments.fused else Block
        self.model = GPT(size, data.vocab_size, arguments.activation_checkpointing, block).to(self.device)
        if convert is not None:
            convert(self.model)
        self.num_parameters = sum(p.numel() for p in self.model.parameters())
        groups = parameter_groups(self.model, arguments.weight_decay)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=arguments.lr, betas=(0.9, 0.95))
        self.clip_grad_norm: Callable[..., Tensor] = nn.utils.clip_grad_norm_
        if arguments.precision in O_LEVELS:
            self._use_fp8()
        self.compute_loss = torch.compile(self.model) if arguments.compile else self.model
        batch = (arguments.batch_size, size.block_size)
        self.batches = RandomBatches(data.train, *batch, arguments.seed, self.device)
        self.validation = validation_batches(data.val, arguments.eval_batches, *batch, self.device)
        self.tokens_per_step = arguments.batch_size * size.block_size * arguments.accumulate

    def _use_fp8(self) -> None:
        """All that FP8 asks of a training script."""
        level, seed = self.arguments.precision, self.arguments.seed
        fp8amp = import_fp8amp(f"--precision {level}")
        fp8amp.initialize(self.model, self.optimizer, opt_level=level, seed=seed, **self.level_options)
        self.clip_grad_norm = fp8amp.clip_grad_norm_

    def learning_rate(self, step: int) -> float:
        """Of step 1, 2, ...: a line up to --lr, then half a cosine down to --min-lr at the last step."""
        a = self.arguments
        if step <= a.warmup:
            return a.lr * step / a.warmup
        progress = (step - a.warmup) / max(1, a.steps - a.warmup)
        return a.min_lr + (a.lr - a.min_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """BF16 autocast where the activations are to be BF16."""
        if self.arguments.activations == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def step(self) -> report.Row:
        """One optimizer step over --accumulate batches. The gradients stay until the next one."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for _ in range(self.arguments.accumulate):
            inputs, targets = self.batches.next()
            with self.autocast():
                loss = self.compute_loss(inputs, targets) / self.arguments.accumulate
            loss.backward()
            total += loss.detach()
        norm = self.clip_grad_norm(self.model.parameters(), self.arguments.clip or math.inf)
        self.step_number += 1
        rate = self.learning_rate(self.step_number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        row = {"step": self.step_number, "loss": total.item(), "lr": rate, "grad_norm": norm.item()}
        return row | {"seconds": time.perf_counter() - start}

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss over the validation batches."""
        self.model.eval()
        with self.autocast():
            losses = [self.model(inputs, targets) for inputs, targets in self.validation]
        self.model.train()
        return torch.stack(losses).double().mean().item()

    def sample(self) -> str | None:
        """Text that the model writes by itself."""
        if not self.arguments.sample or self.data.tokenizer is None:
            return None
        prompt = self.data.tokenizer.encode("\n\ndef ").astype("int64")
        generator = torch.Generator().manual_seed(self.arguments.seed)
        self.model.eval()
        with self.autocast():
            start = torch.from_numpy(prompt)[None].to(self.device)
            tokens = self.model.generate(start, self.arguments.sample, 0.7, generator)
        self.model.train()
        return self.data.tokenizer.decode(tokens[0].tolist()).strip()

    def _identity(self) -> dict[str, str]:
        """What must not change between the parts of a run, by option."""
        fixed = {name: value for name, value in vars(self.arguments).items() if name not in MAY_CHANGE}
        everything = fixed | self.level_options | {"data": self.data.fingerprint}
        return {name: str(value) for name, value in everything.items()}

    def save(self) -> None:
        """Write the checkpoint, at once or not at all."""
        content = {
            "step": self.step_number,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "batches": self.batches.generator.get_state(),
            "identity": self._identity(),
        }
        part = self.out / "checkpoint.part"
        with part.open("wb") as file:  # whose errors are OSErrors, unlike those of torch's own files
            torch.save(content, file)
        os.replace(part, self.out / "checkpoint.pt")
        self.saved_step = self.step_number

    def load(self) -> None:
        """Go back to the checkpoint, refusing that of a run with other options."""
        file = self.out / "checkpoint.pt"
        try:
            content = torch.load(file, map_location=self.device)
            now, then = self._identity(), content["identity"]
        except Exception as error:  # torch has many for a damaged file
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise Refused(f"--resume: cannot read {file}: {reason}; --overwrite starts again") from None
        for name in sorted(now.keys() | then.keys()):
            if now.get(name) != then.get(name):
                option = "--" + name.replace("_", "-")
                raise Refused(f"--resume: {self.out} has {option} {then.get(name)}, not {now.get(name)}")
        stop = self.arguments.stop_at
        if stop is not None and stop <= content["step"]:
            raise Refused(f"--stop-at {stop}: the run in {self.out} is at step {content['step']} already")
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.batches.generator.set_state(content["batches"].cpu())
        self.step_number = self.saved_step = content["step"]

    def run(self) -> list[report.Row]:
        """Train to the last step and return the rows of metrics.jsonl. A non-finite loss ends it early."""
        a = self.arguments
        metrics = report.Metrics(self.out, self.step_number or -1, a.tensorboard)
        progress = report.Progress(a.steps, self.step_number, self.tokens_per_step, a.log_every)
        report.reset_peak_memory(self.device)
        with Signals() as signals, contextlib.closing(metrics), contextlib.closing(progress):
            if self.step_number == 0:
                metrics.add({"step": 0, "val_loss": self.evaluate()})
            while self.step_number < a.steps:
                row = self.step()
                finite = math.isfinite(row["loss"])
                if self.step_number % a.eval_every == 0 or self.step_number == a.steps or not finite:
                    row["val_loss"] = self.evaluate()
                metrics.add(row)
                progress.show(row)
                if not finite:
                    break
                stop = signals.received or self.step_number == a.stop_at
                if stop or (a.checkpoint_every and self.step_number % a.checkpoint_every == 0):
                    self.save()
                if stop and self.step_number < a.steps:
                    raise Interrupted(self.step_number, signals.received)
        return metrics.rows
