"""A second device without one: tensors on torch's ``meta`` device stand for those on a GPU.

Every operation with operands on both devices is refused, as a GPU would refuse it, except for single numbers. Values do not
exist there: a copy back to the CPU holds random numbers, and a number that is read is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from spatialgears.config import Config
from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.objective import Batch, Noise, Objective
from spatialgears.model import GEARS

GPU = torch.device("meta")
COPIES = ("_to_copy", "copy_", "_copy_from")


class TwoDevices(TorchDispatchMode):
    """Refuses operations across devices, and counts those on the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        there = [one for one in tensors if one.device == GPU]
        self.operations += bool(there)
        if name == "_local_scalar_dense" and there:
            return True if tensors[0].dtype == torch.bool else 1
        if name in COPIES and there:
            return self._copied(func, name, args, kwargs)
        mixed = there and any(one.device != GPU and one.dim() for one in tensors)
        if mixed and not self._index_on_cpu(name, args):
            raise RuntimeError(f"{func}: operands on two devices, {[tuple(one.shape) for one in tensors]}")
        return func(*args, **kwargs)

    @staticmethod
    def _index_on_cpu(name: str, args: Any) -> bool:
        """An index may be on the CPU, as it may for a GPU."""
        return name in ("index", "index_put_", "index_put") and args[0].device == GPU

    @staticmethod
    def _copied(func: Any, name: str, args: Any, kwargs: Any) -> Any:
        source = args[1] if name == "copy_" else args[0]
        target = args[0].device if name == "copy_" else torch.device(kwargs.get("device") or source.device)
        if source.device != GPU or target == GPU:
            return func(*args, **kwargs)
        values = torch.rand(source.shape).add(0.01).to(kwargs.get("dtype") or source.dtype)
        return args[0].copy_(values) if name == "copy_" else values


class Autocast(torch.autocast):
    """torch's own does not know the device."""

    def __init__(self, device_type: str, **options: Any) -> None:
        super().__init__("cpu" if device_type == GPU.type else device_type, **options)


class Fabric:
    """As much of Lightning Fabric as training uses, with :data:`GPU` as its device."""

    device, world_size, global_rank, is_global_zero = GPU, 1, 0, True

    def setup(self, module: torch.nn.Module, *optimizers: Any) -> Any:
        old = {id(one): name for name, one in module.named_parameters()}
        module.to(GPU)
        new = dict(module.named_parameters())
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["fused"] = False  # of what the device lacks
                group["params"] = [new[old[id(one)]] for one in group["params"]]
        return (module, *optimizers)

    def to_device(self, values: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda one: one.to(GPU), values)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def clip_gradients(
        self, module: Any, optimizer: Any, *, max_norm: float, error_if_nonfinite: bool
    ) -> Any:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def broadcast(self, values: Any) -> Any:
        return values


@pytest.fixture(autouse=True)
def autocast(monkeypatch):
    monkeypatch.setattr(torch, "autocast", Autocast)


def there(*shape):
    return torch.randn(shape).to(GPU)


@pytest.mark.parametrize("astray", [None, "x", "coords", "mask"])
@pytest.mark.parametrize(
    ("preset", "part"), [("default", "generator"), ("default", "refiner"), ("paper", "joint")]
)
def test_a_step_stays_on_its_device_and_what_is_astray_is_found(preset, part, astray):
    settings = {"width": 16, "inducing": 4, "hidden": 8, "reference": 16}
    config = Config.preset(preset).with_values({"geometry": settings}).geometry
    with TwoDevices() as devices:
        objective = Objective(GeometryModel(40, 8, config), part).to(GPU).train()
        shared = torch.ones(2, 25, dtype=torch.bool).to(GPU) if config.pairs else None
        noise = None if part == "generator" else Noise(there(4), there(4, 50, 8), True)
        batch = Batch(there(4, 50, 40), there(4, 50, 2), there(4, 50) > 0, shared)
        if astray:
            batch = batch._replace(**{astray: torch.ones_like(getattr(batch, astray), device="cpu")})
            with pytest.raises(RuntimeError, match="operands on two devices"):
                objective(batch, noise)
            return
        torch.stack(list(objective(batch, noise).values())).sum().backward()
    trained = [one for one in objective.parameters() if one.requires_grad]
    assert trained and all(one.grad is not None and one.grad.device == GPU for one in trained)
    assert devices.operations > 100


def test_a_whole_fit_on_another_device(small_config, small_tissue, monkeypatch, tmp_path):
    """Stages A and C train there; placing, radii, saving and loading follow on the CPU."""
    values = {"steps": 2, "refiner_steps": 2, "crossfit": 2, "slide_steps": 2, "eval_every": 1}
    config = small_config.with_values({"geometry": values})
    monkeypatch.setattr("spatialgears.pipeline.fit.make_fabric", lambda config: Fabric())
    with TwoDevices() as devices:
        model = GEARS(config).fit(small_tissue.slides, small_tissue.cells)
    assert devices.operations > 1000
    assert {one.device.type for one in model.fitted_.network.state_dict().values()} == {"cpu"}
    placed = model.reconstruct(small_tissue.cells)
    assert np.isfinite(placed.coords).all() and np.isfinite(placed.radius90).all()
    model.save(tmp_path / "model")
    again = GEARS.load(tmp_path / "model").reconstruct(small_tissue.cells)
    np.testing.assert_array_equal(again.coords, placed.coords)
