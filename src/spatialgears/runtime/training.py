"""Training on Lightning Fabric: the engine, and the one loop that stages A and C share."""

from __future__ import annotations

import copy
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spatialgears.config import Config
from spatialgears.errors import ConfigError, RunError, TrainingError
from spatialgears.runtime.files import load_state, save_state
from spatialgears.runtime.processes import together
from spatialgears.runtime.progress import Progress, silent

if TYPE_CHECKING:
    from lightning_fabric import Fabric

log = logging.getLogger(__name__)

#: Names of losses and scores to their values in the course of training.
History = dict[str, list[float]]
HISTORY_POINTS = 300  # a phase's history holds about this many means over consecutive steps


def make_fabric(config: Config) -> Fabric:
    """The Lightning Fabric engine the configuration asks for; one process, on a GPU if there is one, by default."""
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it logs every process
    accelerator: str = config.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    on_cpu = accelerator == "cpu"
    if on_cpu and config.precision == "16-mixed":
        raise ConfigError(
            "precision = 16-mixed needs a GPU, but the configuration asks for the CPU.", "Use 32-true."
        )
    if on_cpu and config.precision == "bf16-mixed" and not bf16_works():
        raise ConfigError(
            "precision = bf16-mixed does not work on this CPU: a trial of it failed.", "Use 32-true."
        )
    if on_cpu and config.compile and not shutil.which(os.environ.get("CXX", "c++")):
        raise ConfigError(
            "compile = true needs a C++ compiler, but none was found.",
            "Install g++, or leave compile = false.",
        )
    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=config.devices,
            num_nodes=config.num_nodes,
            precision=config.precision,
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"accelerator = {accelerator} with devices = {config.devices} cannot be used here: {error}",
            "Use accelerator = cpu and devices = 1.",
        ) from error
    fabric.launch()
    device = fabric.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    log.info("networks are trained on %s", "the CPU" if on_cpu else name)
    return fabric


def join(config: Config) -> None:
    """Connect to the other processes of this run, if there are any, and wait until all are connected.

    One that refuses the input at once would otherwise break the connection that others are still making.
    """
    if config.processes > 1:
        make_fabric(config).barrier()


_BF16 = """
import torch
layer = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.SiLU(), torch.nn.Linear(32, 16))
with torch.autocast("cpu", dtype=torch.bfloat16):
    x = layer(torch.randn(64, 16)).reshape(2, 4, 8, 16)
    y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
y.float().sum().backward()
"""


@cache
def bf16_works() -> bool:
    """Whether bfloat16 runs on this CPU. Some CPUs claim it but crash the process, so a separate process tries it."""
    done = subprocess.run([sys.executable, "-c", _BF16], capture_output=True, check=False)
    return done.returncode == 0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What one phase of training consists of; :func:`train` runs it."""

    name: str  # names the checkpoint file
    title: str  # names the phase in progress and messages
    objective: nn.Module  # its forward pass returns the weighted losses by name
    optimizer: torch.optim.Optimizer  # of the parameters that are trained
    steps: int  # steps of the phase
    #: ``inputs(step)``: the arguments of the objective, on the device.
    inputs: Callable[[int], tuple[Any, ...]]
    #: ``dropout_seed(step, rank)``: seeds the global generator before each step.
    dropout_seed: Callable[[int, int], int]
    model: nn.Module  # the part of the objective that is evaluated and, with ``ema``, averaged
    #: ``evaluate(model)``: scores by name, the first of which counts; None for no evaluation.
    evaluate: Callable[[Any], dict[str, float]] | None
    every: int  # steps between evaluations and checkpoints
    #: ``rate(share of training done)``: the learning rate; None for that of the optimizer.
    rate: Callable[[float], float] | None = None
    clip: float | None = None  # largest norm of the gradient; None for no clipping
    #: Decay of the averaged weights. The model ends with those that scored best, or with the last; None for no averaging,
    #: and the model ends as it was trained.
    ema: float | None = None
    ended: Callable[[int, History], bool] | None = None  # ``ended(step, history)``: whether to stop early
    identity: str  # what a checkpoint must agree with to be resumed


def train(
    phase: Phase,
    fabric: Fabric,
    config: Config,
    *,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> History:
    """Train a phase, from its checkpoint in that folder where there is one, and return its history.

    The random numbers of a step depend on the seed, the phase and the step alone, so an interrupted run continues from
    its checkpoint bit for bit (with ``16-mixed`` nearly so: the loss scale starts again). The history has every
    weighted loss, ``loss`` and, with ``rate``, ``lr`` beside ``step``, as means over windows of steps; and each score
    beside ``<first score>_step``.
    """
    wrapped, optimizer = fabric.setup(phase.objective, phase.optimizer)
    average = None if phase.ema is None else copy.deepcopy(phase.model).eval()
    state = State(phase, average)
    start, window = state.load(checkpoint), max(1, phase.steps // HISTORY_POINTS)
    wrapped.train()
    if start:
        progress(phase.title, start, phase.steps, {})
    for step in range(start, phase.steps):
        if phase.ended is not None and phase.ended(step, state.history):
            break
        torch.manual_seed(phase.dropout_seed(step, fabric.global_rank))
        shown: dict[str, float] = {}
        if phase.rate is not None:
            shown["lr"] = phase.rate(step / phase.steps)
            for group in phase.optimizer.param_groups:
                group["lr"] = shown["lr"]
        losses: dict[str, Tensor] = wrapped(*phase.inputs(step))
        check_finite(losses, step, phase.title)
        optimizer.zero_grad()
        with together():
            fabric.backward(torch.stack(list(losses.values())).sum())
        if phase.clip is not None:
            norm = fabric.clip_gradients(wrapped, optimizer, max_norm=phase.clip, error_if_nonfinite=False)
            if config.precision != "16-mixed":  # which scales the loss until gradients are finite
                check_finite({"gradient": torch.as_tensor(norm)}, step, phase.title)
        optimizer.step()
        if average is not None and phase.ema is not None:
            follow(average, phase.model, min(phase.ema, (1 + step) / (10 + step)))
        values = {name: float(value.detach()) for name, value in losses.items()}
        values = {"loss": sum(values.values()), **values}
        state.record(step, shown | values, window)
        if (step + 1) % phase.every == 0 or step + 1 == phase.steps:
            if phase.evaluate is not None:  # all processes use the scores of the first
                scores = phase.evaluate(phase.model if average is None else average)
                values |= state.judge(step, fabric.broadcast(scores))
            if checkpoint is not None and fabric.is_global_zero:
                state.save(checkpoint, step + 1)
        progress(phase.title, step + 1, phase.steps, values)
    if average is not None:
        phase.model.load_state_dict(state.best or average.state_dict())
    return state.history


class State:
    """Everything of a phase that a checkpoint must hold."""

    def __init__(self, phase: Phase, average: nn.Module | None) -> None:
        self.phase, self.average = phase, average
        self.history: History = {}
        self.pending: History = {}
        self.best: dict[str, Tensor] = {}

    def record(self, step: int, values: Mapping[str, float], window: int) -> None:
        """Add a step to the history, as means over windows of steps."""
        for key, value in {"step": step + 1, **values}.items():
            self.pending.setdefault(key, []).append(value)
        if len(self.pending["step"]) == window:
            for key, recent in self.pending.items():
                self.history.setdefault(key, []).append(math.fsum(recent) / window)
            self.pending = {}

    def judge(self, step: int, scores: dict[str, float]) -> dict[str, float]:
        """Note scores, and keep the averaged weights if the first score is the best so far."""
        name = next(iter(scores))
        best = max(self.history.get(name, []), default=-math.inf)
        if self.average is not None and scores[name] > best:
            self.best = {key: value.clone() for key, value in self.average.state_dict().items()}
        for key, value in {f"{name}_step": step + 1, **scores}.items():
            self.history.setdefault(key, []).append(value)
        return scores

    def save(self, folder: Path, done: int) -> None:
        """Write the phase as it is after ``done`` steps."""
        parts = {"module": self.phase.objective.state_dict(), "best": self.best}
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        tensors = {f"{part}.{key}": value for part, state in parts.items() for key, value in state.items()}
        for index, slots in self.phase.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{slot}": torch.as_tensor(value) for slot, value in slots.items()}
        meta = {
            "identity": self.phase.identity,
            "done": done,
            "threads": torch.get_num_threads(),
            "history": self.history,
            "pending": self.pending,
        }
        save_state(folder / f"{self.phase.name}.safetensors", tensors, meta)

    def load(self, folder: Path | None) -> int:
        """Restore the phase's checkpoint, if there is one, and return the steps done."""
        if folder is None or not (path := folder / f"{self.phase.name}.safetensors").exists():
            return 0
        tensors, meta = load_state(path)
        if meta.get("identity") != self.phase.identity:
            raise RunError(f"{path} belongs to another configuration, seed or data. Delete it and run again.")
        parts: dict[str, dict[str, Tensor]] = {"module": {}, "average": {}, "best": {}, "optimizer": {}}
        for key, value in tensors.items():
            part, _, rest = key.partition(".")
            parts[part][rest] = value
        self.phase.objective.load_state_dict(parts["module"])
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in parts["optimizer"].items():
            index, _, slot = key.partition(".")
            moments.setdefault(int(index), {})[slot] = value
        groups = self.phase.optimizer.state_dict()["param_groups"]
        self.phase.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        if self.average is not None:
            self.average.load_state_dict(parts["average"])
        self.best, self.history, self.pending = parts["best"], meta["history"], meta["pending"]
        log.info("%s: resuming after %d steps", self.phase.title, meta["done"])
        if (before := meta.get("threads")) != (now := torch.get_num_threads()):
            log.warning(
                f"{self.phase.title}: begun with {before} threads, resumed with {now}: the result will differ in rounding from "
                f"that of a run with one number of threads. Set threads = {before} to avoid it."
            )
        return int(meta["done"])


@torch.no_grad()
def follow(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Move an exponential moving average of the trained weights towards the model; buffers are copied."""
    pairs = zip(average.parameters(), model.parameters(), strict=True)
    old_weights, new_weights = zip(*(pair for pair in pairs if pair[1].requires_grad), strict=True)
    torch._foreach_lerp_(old_weights, new_weights, 1 - decay)
    for old, new in zip(average.buffers(), model.buffers(), strict=True):
        old.copy_(new)


def check_finite(losses: Mapping[str, Tensor], step: int, title: str) -> None:
    """Stop at the first loss that is not finite, naming the term and the step."""
    bad = [name for name, value in losses.items() if not bool(torch.isfinite(value).all())]
    if bad:
        raise TrainingError(
            f"{title}: the loss term {', '.join(bad)} is not finite at step {step}. The last checkpoint is kept. "
            "Try a smaller learning rate, or run `gears check` to find unusual values in the input."
        )
