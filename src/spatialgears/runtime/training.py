"""What the training loops share: the Fabric engine, the state of a checkpoint, and the check for finite losses."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from spatialgears.config import Config
from spatialgears.errors import ConfigError, TrainingError

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def make_fabric(config: Config) -> Fabric:
    """The Lightning Fabric engine the configuration asks for; one process on the CPU by default."""
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces every process
    on_cpu = config.accelerator == "cpu" or (
        config.accelerator == "auto" and not (torch.cuda.is_available() or torch.backends.mps.is_available())
    )
    if on_cpu and config.precision == "16-mixed":
        raise ConfigError(
            "precision = 16-mixed needs a GPU, and the configuration asks for the CPU.", "Use 32-true."
        )
    if on_cpu and config.precision == "bf16-mixed" and not bf16_works():
        raise ConfigError(
            "precision = bf16-mixed does not work on this CPU: a trial of it failed.", "Use 32-true."
        )
    if on_cpu and config.compile and not shutil.which(os.environ.get("CXX", "c++")):
        raise ConfigError(
            "compile = true needs a C++ compiler, and there is none.",
            "Install g++, or leave compile = false.",
        )
    try:
        fabric = Fabric(
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.num_nodes,
            precision=config.precision,
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"accelerator = {config.accelerator} with devices = {config.devices} cannot be used here: {error}",
            "Use accelerator = cpu and devices = 1.",
        ) from error
    fabric.launch()
    return fabric


def join(config: Config) -> None:
    """Meet the other processes of this run, if there are to be any."""
    if config.processes > 1:
        make_fabric(config)


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
    """Whether bfloat16 runs on this CPU. Some claim it and end the process instead, so another process tries."""
    done = subprocess.run([sys.executable, "-c", _BF16], capture_output=True, check=False)
    return done.returncode == 0


def training_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The weights and the optimiser's moments as flat named tensors, ready for :func:`save_state`."""
    tensors = {f"module.{name}": value for name, value in module.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        for slot, value in slots.items():
            tensors[f"optimizer.{index}.{slot}"] = torch.as_tensor(value)
    return tensors


def restore_training(
    tensors: Mapping[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put back what :func:`training_state` took."""
    module.load_state_dict(
        {k.removeprefix("module."): v for k, v in tensors.items() if k.startswith("module.")}
    )
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, slot = name.split(".", 2)
            state.setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def check_finite(losses: Mapping[str, Tensor], step: int, stage: str) -> None:
    """Stop at the first loss that is not finite, naming the term and the step."""
    bad = [name for name, value in losses.items() if not bool(torch.isfinite(value).all())]
    if bad:
        raise TrainingError(
            f"{stage}: the loss term {', '.join(bad)} is no longer finite at step {step}. The last checkpoint is kept. "
            "Try a smaller learning rate, or `gears check` for odd values in the input."
        )
