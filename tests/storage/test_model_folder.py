from __future__ import annotations

import errno
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from spatialgears.config import Config
from spatialgears.errors import InputError, RunError
from spatialgears.model import GEARS
from spatialgears.runtime.files import load_state, save_state
from spatialgears.storage.model_folder import (
    FILES,
    StoredModel,
    flatten,
    load_model,
    part,
    remove,
    save_model,
    sealed,
    versions,
)


@pytest.fixture
def stored() -> StoredModel:
    genes = np.array(["Mbp", "Häm 1", "a\u2028b"])
    return StoredModel(Config(seed=3), {"w": torch.arange(3.0)}, genes, {"raw": True})


@pytest.fixture
def folder(small_model, tmp_path) -> Path:
    small_model.save(tmp_path / "model")
    return tmp_path / "model"


def test_round_trip(stored, tmp_path):
    save_model(tmp_path / "m", stored)
    found = load_model(tmp_path / "m")
    assert found.config == stored.config and found.meta["raw"] is True
    assert list(found.genes) == list(stored.genes)
    assert torch.equal(found.tensors["w"], stored.tensors["w"])
    assert found.meta["versions"] == versions() and "torch" in versions()


def test_the_same_model_gives_the_same_files(stored, tmp_path):
    for name in ("a", "b"):
        save_model(tmp_path / name, stored)
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in FILES)


def test_names_of_parts():
    state = flatten("network", {"a.b": torch.ones(1)}) | {"networks.c": torch.zeros(1)}
    assert list(part("network", state)) == ["a.b"]


def test_files_are_not_overwritten_unasked(stored, tmp_path):
    save_model(tmp_path / "m", stored)
    with pytest.raises(InputError, match="not empty"):
        save_model(tmp_path / "m", stored)
    other = StoredModel(Config(seed=4), stored.tensors, stored.genes, stored.meta)
    save_model(tmp_path / "m", other, overwrite=True)
    assert load_model(tmp_path / "m").config.seed == 4


def test_a_full_disk_leaves_the_old_model(stored, tmp_path, monkeypatch):
    save_model(tmp_path / "m", stored)
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}

    def full(tensors):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("spatialgears.storage.model_folder.packed_state", full)
    other = StoredModel(Config(seed=4), stored.tensors, stored.genes, stored.meta)
    with pytest.raises(RunError, match=r"No space left.*are as they were"):
        save_model(tmp_path / "m", other, overwrite=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == before


def test_what_a_killed_save_left_is_no_stranger_and_notes_stay(stored, tmp_path):
    (tmp_path / ".weights.safetensors.abcd1234.safetensors").write_bytes(b"half")
    save_model(tmp_path, stored)
    (tmp_path / "notes.txt").write_text("mine")
    save_model(tmp_path, stored, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "notes.txt"}


def test_strange_folders_and_files_are_never_overwritten(stored, tmp_path):
    (tmp_path / "thesis.txt").write_text("words")
    with pytest.raises(InputError, match="not a model"):
        save_model(tmp_path, stored, overwrite=True)
    with pytest.raises(InputError, match="is a file"):
        save_model(tmp_path / "thesis.txt", stored)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name} missing"):
        GEARS.load(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        GEARS.load(tmp_path / "nothing")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_file_is_named(folder, name, damage):
    path = folder / name
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 0x55
    if damage == "flip" and name == "meta.json":
        data[0:1] = b"["
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"" if damage == "empty" else data)
    with pytest.raises(RunError, match=name):
        GEARS.load(folder)


def test_files_of_another_model_are_refused(small_model, folder):
    genes = (folder / "genes.txt").read_text().splitlines()
    (folder / "genes.txt").write_text("".join(f"{gene}\n" for gene in genes[::-1]))
    with pytest.raises(RunError, match=r"genes.txt in .* is not what was saved"):
        GEARS.load(folder)
    small_model.save(folder, overwrite=True)
    (folder / "config.json").write_text(Config().to_json())
    with pytest.raises(RunError, match=r"config.json in .* is not what was saved"):
        GEARS.load(folder)
    small_model.save(folder, overwrite=True)
    tensors, meta = load_state(folder / "weights.safetensors")
    save_state(
        folder / "weights.safetensors", {k: v.flip(0) if v.ndim else v for k, v in tensors.items()}, meta
    )
    with pytest.raises(RunError, match=r"weights.safetensors in .* is not what was saved"):
        GEARS.load(folder)


def test_facts_that_do_not_fit_the_weights_are_refused(folder):
    meta = json.loads((folder / "meta.json").read_text())
    for changed in (meta | {"members": 5}, {k: v for k, v in meta.items() if k != "slides"}):
        changed = {key: value for key, value in changed.items() if key != "digest"}
        (folder / "meta.json").write_text(sealed(json.dumps(changed, indent=1)) + "\n")
        with pytest.raises(
            RunError, match=r"does not belong to the configuration|meta.json cannot be used: slides"
        ):
            GEARS.load(folder)


def test_a_newer_format_asks_for_an_upgrade(folder):
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"format": 99}))
    with pytest.raises(RunError, match="Upgrade"):
        GEARS.load(folder)
    (folder / "meta.json").write_text(json.dumps(meta | {"format": 1, "warnings": ["edited"]}))
    with pytest.raises(RunError, match="not what was saved"):
        GEARS.load(folder)


class Payload:
    """A pickle of this would write a file when read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.write_text, (self.path, "hacked"))


@pytest.mark.parametrize("name", FILES)
def test_a_pickle_is_refused_and_not_run(folder, tmp_path, name):
    (folder / name).write_bytes(pickle.dumps(Payload(tmp_path / "hacked")))
    with pytest.raises(RunError, match=name):
        GEARS.load(folder)
    assert not (tmp_path / "hacked").exists()


def test_remove(tmp_path):
    (tmp_path / "a").mkdir()
    remove(tmp_path / "a")
    remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()
