"""Models made to harm: loaded or refused with advice, in little memory, and nothing but the output is touched.

Digests are made anew after every change: they find damage, and do not keep anyone from writing a model.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from spatialgears.errors import GearsError, RunError
from spatialgears.model import GEARS
from spatialgears.runtime.files import load_state, packed_state
from spatialgears.storage.model_folder import sealed

#: By name: spoils a model folder.
CASES: dict[str, Callable[[Path], None]] = {}


def reseal(folder: Path, **facts) -> None:
    """Make the digests those of the files, and change some facts."""
    path = folder / "meta.json"
    meta = json.loads(path.read_text())
    meta.pop("digest")
    for name in meta["files"]:
        if (folder / name).is_file() and not (folder / name).is_symlink():
            meta["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    meta |= facts
    path.write_text(sealed(json.dumps({k: v for k, v in meta.items() if v is not ...}, indent=1)) + "\n")


# tensors: one of each kind

TENSORS = ["panel.weights", "panel.morans_i", "cells.mean", "cells.std", "folds.part", "folds.whole", "slide0.coords",
           "slide0.anchors", "slide0.centre", "slide0.scale", "slide0.pitch", "slide1.expression", "slide1.embedding",
           "pull.bank", "pull.axes", "encoder.scale", "encoder.start", "network.members.0.sigma_data",
           "network.nearest.bank", "network.nearest.slide", "network.nearest.spot", "network.nearest.reach",
           "network.nearest.crowding", "network.nearest.coords", "confidence.centre", "confidence.axes", "confidence.bank",
           "confidence.ratios", "confidence.far", "inputs.genes", "inputs.correlations", "inputs.spots", "inputs.cells",
           "inputs.means", "slide0.checked.spots", "slide0.checked.values", "slide0.checked.ceiling", "cell_check.coords",
           "cell_check.measured"]  # fmt: skip


def filled(tensor: torch.Tensor, value: float) -> torch.Tensor:
    most = torch.finfo(tensor.dtype).max if tensor.is_floating_point() else 2**62
    clipped = value if math.isnan(value) else max(min(value, most), -most)
    return torch.full_like(tensor, clipped if tensor.is_floating_point() else int(clipped))


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "missing": lambda t: None,
    "nan": lambda t: filled(t, math.nan) if t.is_floating_point() else filled(t, -1),
    "huge": lambda t: filled(t, 3e38),
    "negative": lambda t: filled(t, -(10**9)),
    "longer": lambda t: torch.cat([t, t]) if t.ndim else t[None].repeat(7),
    "empty": lambda t: t[:0] if t.ndim else t.new_zeros(0),
    "another type": lambda t: t.to(torch.int64 if t.is_floating_point() else torch.float32),
    "half": lambda t: t.to(torch.float16 if t.dtype != torch.float16 else torch.bfloat16),
    "deeper": lambda t: t[None],
}


def change_tensor(name: str, change, folder: Path) -> None:
    path = folder / "weights.safetensors"
    tensors, _ = load_state(path)
    assert name in tensors, name
    new = change(tensors.pop(name))
    path.write_bytes(packed_state(tensors if new is None else tensors | {name: new}))
    reseal(folder)


for _name in TENSORS:
    for _how, _change in CHANGES.items():
        CASES[f"{_name} {_how}"] = partial(change_tensor, _name, _change)


def change_network(how: str, folder: Path) -> None:
    """The first matrix of the generators."""
    tensors, _ = load_state(folder / "weights.safetensors")
    name = next(key for key, one in tensors.items() if key.startswith("network.members.0") and one.ndim == 2)
    change_tensor(name, CHANGES[how], folder)


for _how in CHANGES:
    CASES[f"network {_how}"] = partial(change_network, _how)


# facts

FACTS = ["raw", "target", "members", "slides", "donors", "donors_stated", "crossfit", "left_out", "checks",
         "cell_check", "warnings", "embedding", "history", "versions", "files", "format"]  # fmt: skip
VALUES = {"missing": ..., "null": None, "text": "\x1b[31mmany", "million": 10**6, "below": -5, "list": [[[]]],
          "object": {"a": {}}, "nan": math.nan, "huge": 10**400}  # fmt: skip


def change_fact(name: str, value, folder: Path) -> None:
    reseal(folder, **{name: value})


for _name in FACTS:
    for _how, _value in VALUES.items():
        CASES[f"fact {_name} {_how}"] = partial(change_fact, _name, _value)


def change_check(key: str, value, folder: Path) -> None:
    checks = json.loads((folder / "meta.json").read_text())["checks"]
    checks[0] = {k: v for k, v in (checks[0] | {key: value}).items() if v is not ...}
    reseal(folder, checks=checks)


for _key in ("title", "model", "reference", "verdict", "words", "p_value", "n_spots", "more"):
    for _how in ("missing", "null", "list", "text"):
        CASES[f"self-check {_key} {_how}"] = partial(change_check, _key, VALUES[_how])


# configuration


def change_config(key: str, value, folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    place = config
    *stages, last = key.split(".")
    for stage in stages:
        place = place[stage]
    place[last] = value
    path.write_text(json.dumps(config))
    reseal(folder)


SETTINGS = {
    "geometry.width": [4096, 0, "wide"], "geometry.hidden": [8192, 0], "geometry.heads": [64, 3], "geometry.inducing": [4096],
    "geometry.context_blocks": [32, 0], "geometry.denoiser_blocks": [32], "geometry.refiner": ["none", "all"],
    "geometry.inputs": ["embedding", []], "geometry.crossfit": [0, 20, 10**6], "geometry.nearest": [False],
    "geometry.landmarks": [1024], "geometry.distance_bins": [256], "geometry.knn": [128],
    "supervision.dim": [256, 2], "expression.hidden": [[10**7], [1] * 50, []], "expression.embed_dim": [10**7],
    "expression.pull": [0, 1], "expression.signal": ["spatial"], "expression.standardise": [False],
    "assembly.mode": ["patches", None], "assembly.patch_size": [8192], "assembly.memory_gb": [1e-9, 1e300],
    "assembly.spacing": [0, 1], "assembly.sigma_start": [100], "assembly.core_cells": [10**12],
    "threads": [1024, -1], "devices": [1000], "seed": [2**40], "accelerator": ["cuda"], "precision": ["16-mixed"],
    "compile": [True], "more": [{}],
}  # fmt: skip
for _key, _values in SETTINGS.items():
    for _value in _values:
        CASES[f"config {_key} = {str(_value)[:20]}"] = partial(change_config, _key, _value)


# files


def write(name: str, data: bytes, folder: Path) -> None:
    (folder / name).write_bytes(data)
    reseal(folder)


def change_genes(how: str, folder: Path) -> None:
    genes = (folder / "genes.txt").read_text().split("\n")[:-1]
    text = {
        "twice": [genes[0], *genes[:-1]],
        "empty": ["", *genes[1:]],
        "fewer": genes[:-1],
        "more": [*genes, "NEW"],
        "ansi": ["\x1b[2J", *genes[1:]],
        "others": [f"unknown{i}" for i in range(len(genes))],
    }[how]
    write("genes.txt", "".join(f"{gene}\n" for gene in text).encode(), folder)


for _how in ("twice", "empty", "fewer", "more", "ansi", "others"):
    CASES[f"genes {_how}"] = partial(change_genes, _how)
CASES["genes no text"] = partial(write, "genes.txt", b"\xff\xfe\n" * 60)
CASES["genes none"] = partial(write, "genes.txt", b"")
for _name in ("config.json", "meta.json"):
    CASES[f"{_name} deep"] = partial(write, "config.json", b'{"a": ' * 10**5) if _name == "config.json" else (
        lambda folder: (folder / "meta.json").write_text("[" * 10**6) and None)  # fmt: skip
    CASES[f"{_name} digits"] = (lambda name, folder: (folder / name).write_text('{"format": ' + "9" * 10**5 + "}") and None
                                ).__get__(_name)  # fmt: skip


def instead(name: str, kind: str, folder: Path) -> None:
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        with path.open("wb") as file:
            file.truncate(50 * 2**30)


for _name in ("config.json", "weights.safetensors", "genes.txt", "meta.json"):
    for _how in ("pipe", "zero", "folder", "loop", "sparse"):
        CASES[f"{_name} is {_how}"] = partial(instead, _name, _how)


def change_header(how: str, folder: Path) -> None:
    """The header of the weights itself, with holes where tensors should be."""
    path = folder / "weights.safetensors"
    data = path.read_bytes()[:-4]
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    first = next(name for name in header if name != "__metadata__")
    if how == "wide":
        header[first] |= {"shape": [2**35], "data_offsets": [0, 2**37]}
    elif how == "overlap":
        header = {
            name: one | {"data_offsets": [0, 4]} if name != "__metadata__" else one
            for name, one in header.items()
        }
    elif how == "negative":
        header[first] |= {"shape": [-1, -1]}
    elif how == "words":
        header[first] = "a tensor"
    elif how == "many":
        header |= {f"more{i}": header[first] for i in range(10**5)}
    elif how == "no facts":
        header.pop("__metadata__")
    elif how == "long":
        header["more"] = "x" * 2**25
    text = json.dumps(header).encode()
    if how == "unclosed":
        text = text[:-1]
    length = 2**60 if how == "length" else len(text)
    payload = struct.pack("<Q", length) + text + body
    path.write_bytes(payload + zlib.crc32(payload).to_bytes(4, "little"))
    reseal(folder)


for _how in ("wide", "overlap", "negative", "words", "many", "no facts", "long", "unclosed", "length"):
    CASES[f"header {_how}"] = partial(change_header, _how)


def sparse_weights(folder: Path) -> None:
    """Tensors of the right names and no end, in a file that takes no room."""
    path = folder / "weights.safetensors"
    data = path.read_bytes()[:-4]
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    at = 0
    for name, one in header.items():
        if name == "__metadata__":
            continue
        if name in ("inputs.spots", "confidence.bank", "confidence.ratios"):
            one["shape"][0] = 5 * 10**7
        size = math.prod(one["shape"]) * {"F64": 8, "F32": 4, "F16": 2, "I64": 8}[one["dtype"]]
        one["data_offsets"] = [at, at + size]
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at + 4)


CASES["sparse weights"] = sparse_weights


# the tests


@pytest.fixture(scope="session")
def whole_model(small_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "model"
    small_model.save(folder)
    return folder


FAST = ["panel.weights nan", "slide0.anchors huge", "confidence.bank deeper", "inputs.genes longer", "cells.std missing",
        "network half", "network longer", "fact members million", "fact checks list", "fact target text",
        "fact embedding object", "fact cell_check object", "self-check model missing", "self-check more text",
        "config geometry.width = 4096",
        "config geometry.crossfit = 1000000",
        "config expression.embed_dim = 10000000", "genes twice", "genes no text", "config.json is pipe", "meta.json is sparse",
        "weights.safetensors is sparse", "header wide", "header long", "sparse weights"]  # fmt: skip


@pytest.mark.parametrize("name", FAST)
def test_a_model_that_is_not_one_is_refused(name, whole_model, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(whole_model, folder)
    CASES[name](folder)
    monkeypatch.setattr(
        "spatialgears.pipeline.fitted.Fitted.restore",
        lambda stored: pytest.fail("it was built before it was checked"),
    )
    with pytest.raises(GearsError, match=r"Fit the model again|cannot be used|is not a saved model"):
        GEARS.load(folder)


def test_every_tensor_and_fact_of_a_model_is_described(whole_model, small_model, small_tissue):
    """One that the schema does not know, or that it wants in vain, would make every model useless."""
    loaded = GEARS.load(whole_model)
    placed = [model.reconstruct(small_tissue.cells).coords for model in (loaded, small_model)]
    assert np.array_equal(*placed)


def try_all(names: list[str], whole: str, cells: str, work: str, told: str) -> None:
    """In a process of its own: place cells with each hostile model, and note how it ended."""
    from spatialgears.cli.app import main

    found = []
    for number, name in enumerate(names):
        folder, out = Path(work) / f"model{number}", Path(work) / f"out{number}.h5ad"
        shutil.copytree(whole, folder)
        CASES[name](folder)
        words, begun, code = io.StringIO(), time.process_time(), 0
        with redirect_stdout(words), redirect_stderr(words):
            try:
                main(["reconstruct", "-m", str(folder), "--sc", cells, "-o", str(out), "--set", "threads=1"])
            except SystemExit as end:
                code = end.code or 0
        found.append((name, code, words.getvalue()[-500:], time.process_time() - begun))
        shutil.rmtree(folder)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    Path(told).write_text(json.dumps([int(status["VmHWM"].split()[0]) / 2**20, found]))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_every_hostile_model_ends_well(processes, whole_model, small_files, tmp_path, record_property):
    bystander = tmp_path / "thesis"
    bystander.write_text("years of work")
    (tmp_path / "work").mkdir()
    before = {path: path.read_bytes() for path in (*small_files.iterdir(), *whole_model.iterdir(), bystander)}
    arguments = (
        list(CASES),
        str(whole_model),
        str(small_files / "sc.h5ad"),
        str(tmp_path / "work"),
        str(tmp_path / "told"),
    )
    child = processes.Process(target=try_all, args=arguments)
    child.start()
    child.join(3600)
    assert child.exitcode == 0
    peak, found = json.loads((tmp_path / "told").read_text())
    wrong = [
        (name, code, words, seconds)
        for name, code, words, seconds in found
        if "unexpected" in words or "Traceback" in words or "\x1b" in words or seconds > 60
        or not (code == 0 or (code in (1, 2) and "Error: " in words))
    ]  # fmt: skip
    assert not wrong, "\n".join(map(str, wrong))
    assert peak < 4
    assert before == {path: path.read_bytes() for path in before}
    assert {path.suffix for path in (tmp_path / "work").iterdir()} <= {".h5ad"}
    record_property("hostile models ended well", len(found))
    record_property("files beside hostile models unchanged", len(before))
    assert len(found) >= 300


def test_a_gene_name_that_no_model_can_hold_is_refused_before_training(small_tissue, small_config):
    from spatialgears.errors import InputError

    slides, cells = [slide.copy() for slide in small_tissue.slides], small_tissue.cells.copy()
    for adata in (*slides, cells):
        adata.var_names = ["a\nb", *adata.var_names[1:]]
    with pytest.raises(InputError, match=r"(?s)control characters.*'a\\nb'.*What to do"):
        GEARS(small_config).fit(slides, cells)


def test_models_are_refused_by_what_they_hold(whole_model, tmp_path):
    shutil.copytree(whole_model, tmp_path / "model")
    CASES["fact members million"](tmp_path / "model")
    with pytest.raises(RunError, match=r"meta.json cannot be used: members: .*less than or equal to 20"):
        GEARS.load(tmp_path / "model")
