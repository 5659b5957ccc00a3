"""The moving parts of a training phase: history, averaged and best weights, learning rate, checkpoints."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spatialgears.errors import RunError
from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.objective import Objective
from spatialgears.runtime.files import load_state, save_state
from spatialgears.runtime.training import restore_training, training_state

log = logging.getLogger(__name__)


@dataclass
class TrainingState:
    """Everything of a phase that a checkpoint must hold."""

    name: str
    objective: Objective
    optimizer: torch.optim.Optimizer
    average: GeometryModel
    identity: str

    def __post_init__(self) -> None:
        self.history: dict[str, list[float]] = {}
        self.pending: dict[str, list[float]] = {}
        self.best: dict[str, Tensor] = {}

    def record(self, step: int, values: dict[str, float], window: int) -> None:
        """Add a step to the history, as means over windows of steps."""
        for key, value in {"step": step + 1, **values}.items():
            self.pending.setdefault(key, []).append(value)
        if len(self.pending["step"]) == window:
            for key, recent in self.pending.items():
                self.history.setdefault(key, []).append(math.fsum(recent) / window)
            self.pending = {}

    def judge(self, step: int, scores: dict[str, float]) -> dict[str, float]:
        """Note held-out scores, and keep the averaged weights when they are the best so far."""
        if scores["heldout"] > max(self.history.get("heldout", []), default=-math.inf):
            self.best = {key: value.clone() for key, value in self.average.state_dict().items()}
        for key, value in {"heldout_step": step + 1, **scores}.items():
            self.history.setdefault(key, []).append(value)
        return scores

    def save(self, folder: Path, done: int) -> None:
        """Write the phase as it is after ``done`` steps."""
        tensors = training_state(self.objective, self.optimizer)
        tensors |= {f"average.{key}": value for key, value in self.average.state_dict().items()}
        tensors |= {f"best.{key}": value for key, value in self.best.items()}
        meta = {"identity": self.identity, "done": done, "history": self.history, "pending": self.pending}
        save_state(folder / f"{self.name}.safetensors", tensors, meta)

    def load(self, folder: Path | None) -> int:
        """Put back the phase's checkpoint, if there is one, and return the steps done."""
        if folder is None or not (path := folder / f"{self.name}.safetensors").exists():
            return 0
        tensors, meta = load_state(path)
        if meta.get("identity") != self.identity:
            raise RunError(f"{path} belongs to another configuration, seed or data. Delete it and run again.")
        restore_training(tensors, self.objective, self.optimizer)
        parts = {"average": dict[str, Tensor](), "best": dict[str, Tensor]()}
        for key, value in tensors.items():
            kind, _, rest = key.partition(".")
            if kind in parts:
                parts[kind][rest] = value
        self.average.load_state_dict(parts["average"])
        self.best, self.history, self.pending = parts["best"], meta["history"], meta["pending"]
        log.info("geometry %s: going on after %d steps", self.name, meta["done"])
        return int(meta["done"])


@torch.no_grad()
def follow(average: torch.nn.Module, model: torch.nn.Module, decay: float) -> None:
    """Move an exponential moving average of the weights that are trained towards the model; buffers are copied."""
    pairs = zip(average.parameters(), model.parameters(), strict=True)
    old_weights, new_weights = zip(*(pair for pair in pairs if pair[1].requires_grad), strict=True)
    torch._foreach_lerp_(old_weights, new_weights, 1 - decay)
    for old, new in zip(average.buffers(), model.buffers(), strict=True):
        old.copy_(new)


def one_cycle(progress: float, warmup: float) -> float:
    """Share of the peak learning rate: up along a cosine from 1/25 during the warm-up, then down to zero."""
    if progress < warmup:
        return 1 / 25 + (1 - 1 / 25) * (1 - math.cos(math.pi * progress / warmup)) / 2
    return (1 + math.cos(math.pi * (progress - warmup) / max(1 - warmup, 1e-9))) / 2
