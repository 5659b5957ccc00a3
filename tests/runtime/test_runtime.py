from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from spatialgears.config import Config
from spatialgears.errors import ConfigError, RunError, TrainingError
from spatialgears.runtime import files, seeds, threads, training


def test_child_seeds_depend_on_the_whole_path_and_on_nothing_else():
    found = [
        seeds.child_seed(seed, *path)
        for seed in (0, 1)
        for path in [(), ("patch",), ("patch", 1), ("patch", 2), ("sample", 1), (1, "patch")]
    ]
    assert len(set(found)) == len(found)
    assert all(0 <= seed < 2**63 for seed in found)
    np.random.default_rng().random(3)
    torch.manual_seed(5)
    assert seeds.child_seed(0, "patch", 1) == found[2]


def test_child_seeds_tell_a_path_from_the_same_path_with_a_zero():
    assert seeds.child_seed(0, "patch") != seeds.child_seed(0, "patch", 0)


def test_generators_are_reproducible_and_apart():
    first, again, other = (seeds.torch_rng(3, "miniset", step) for step in (4, 4, 5))
    x, y, z = (torch.rand(50, generator=generator) for generator in (first, again, other))
    assert torch.equal(x, y) and not torch.equal(x, z)
    assert seeds.numpy_rng(3, "a").random() == seeds.numpy_rng(3, "a").random()


def test_owned_rng_gives_the_callers_generator_back():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with seeds.owned_rng():
        torch.manual_seed(99)
        torch.rand(7)
    assert torch.equal(torch.rand(3), expected)


def test_threads_are_put_back_even_after_an_error():
    before = torch.get_num_threads()

    def fail() -> None:
        with threads.threads(1) as count:
            assert count == torch.get_num_threads() == 1
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_num_threads() == before
    assert float(np.float64(1e-310) * np.float64(1)) > 0  # nor are tiny numbers of the caller flushed to zero
    with threads.threads() as chosen:
        assert 1 <= chosen <= 8


def test_fabric_follows_the_configuration():
    fabric = training.make_fabric(Config())
    assert fabric.device.type == "cpu" and fabric.world_size == 1


def test_write_atomic_leaves_the_old_file_when_interrupted(tmp_path, monkeypatch):
    path = tmp_path / "new" / "a.txt"
    files.write_atomic(path, "old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(path, b"new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_state_round_trip(tmp_path):
    tensors = {"a": torch.rand(3, 2).T, "b": torch.tensor(7), "c": torch.zeros(0)}
    files.save_state(tmp_path / "s", tensors, {"step": 3, "name": "é"})
    found, meta = files.load_state(tmp_path / "s")
    assert meta == {"step": 3, "name": "é"}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-20], lambda data: data[:50] + b"\x00" + data[51:], lambda _: b""]
)
def test_damaged_state_is_refused_by_name(tmp_path, spoil):
    path = tmp_path / "weights.safetensors"
    files.save_state(path, {"a": torch.rand(10)})
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(RunError, match=r"weights\.safetensors"):
        files.load_state(path)


def test_state_of_something_else_is_refused(tmp_path):
    import zlib

    junk = b"x" * 40
    (tmp_path / "s").write_bytes(junk + zlib.crc32(junk).to_bytes(4, "little"))
    with pytest.raises(RunError, match="not a spatialgears state file"):
        files.load_state(tmp_path / "s")


def test_losses_that_are_not_finite_stop_training():
    training.check_finite({"gram": torch.tensor(1.0)}, 3, "geometry")
    with pytest.raises(TrainingError, match=r"geometry: the loss term nca .* step 3"):
        training.check_finite({"gram": torch.tensor(1.0), "nca": torch.tensor(float("nan"))}, 3, "geometry")


def test_compiling_without_a_compiler_is_told_before_any_work(monkeypatch):
    monkeypatch.setattr(training.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="needs a C\\+\\+ compiler"):
        training.make_fabric(Config().with_values(["compile=true"]))
