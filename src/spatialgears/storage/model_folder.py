"""Models on disk: a folder of ``config.json``, ``weights.safetensors``, ``genes.txt`` and ``meta.json``. No pickle."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spatialgears._version import __version__
from spatialgears.config import Config
from spatialgears.errors import ConfigError, InputError, RunError
from spatialgears.runtime.files import abandoned, atomic_paths, load_state, packed_state, unfinished
from spatialgears.storage.schema import Header, TensorSpec, check_header, check_values, read_header

FORMAT = 6
FILES = ("config.json", "weights.safetensors", "genes.txt", "meta.json")
#: Bytes of each but the weights.
MOST_SMALL = 64 * 2**20


@dataclass(frozen=True)
class StoredModel:
    """What a model folder holds: configuration, named tensors, gene names, and JSON-able facts."""

    config: Config
    tensors: dict[str, Tensor]
    genes: np.ndarray
    meta: dict[str, Any]


def save_model(folder: str | Path, model: StoredModel, *, overwrite: bool = False) -> None:
    """Write a model folder: all files beside those that are there, which they replace once all are complete."""
    folder = Path(folder).expanduser()
    require_free(folder, overwrite=overwrite)
    with atomic_paths(folder, FILES) as new:  # without meta.json, which comes last, there is no model
        new["config.json"].write_text(model.config.to_json(), encoding="utf-8")
        new["genes.txt"].write_text(
            "".join(f"{gene}\n" for gene in model.genes), encoding="utf-8", newline="\n"
        )
        new["weights.safetensors"].write_bytes(packed_state(model.tensors))
        digests = {name: _digest(path) for name, path in new.items() if name != "meta.json"}
        meta = {"format": FORMAT, "versions": versions(), "files": digests, **model.meta}
        text = json.dumps(meta, indent=1, default=float)
        new["meta.json"].write_text(sealed(text) + "\n", encoding="utf-8")


def require_free(folder: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder that a model cannot be saved to. What a killed process has left of a model is removed."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file.", "Choose another folder.")
    if unfinished(folder, FILES):
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
    for path in (left for name in FILES for left in abandoned(folder / name)):
        path.unlink(missing_ok=True)
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if found and not overwrite:
        raise InputError(
            f"{folder} exists and is not empty.",
            "Choose another folder, or pass overwrite=True for a model folder.",
        )
    if not found >= set(FILES) and found - set(FILES):
        raise InputError(
            f"{folder} holds files that are not a model.", "Choose another folder; nothing was changed."
        )


class Schema(NamedTuple):
    """What the facts and the tensors of a model must be: each raises, or says what it expects."""

    facts: Callable[[Mapping[str, Any]], None]
    tensors: Callable[[Config, Mapping[str, Any], int, Header], Mapping[str, TensorSpec]]


def load_model(folder: str | Path, schema: Schema | None = None) -> StoredModel:
    """Read a model folder, refusing what is missing, damaged, from a newer format, or not what ``schema`` expects.

    The small files and the names and shapes of tensors are checked before any tensor is read.
    """
    folder = Path(folder).expanduser()
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        found = (
            ", ".join(sorted(p.name for p in folder.iterdir())[:8]) if folder.is_dir() else "no such folder"
        )
        raise InputError(
            f"{folder} is not a saved model: {', '.join(missing)} missing (found: {found or 'nothing'}).",
            "Give the folder that model.save() wrote; `gears run -o out/` writes out/model.",
        )
    weights = folder / "weights.safetensors"
    meta = _read_meta(folder / "meta.json")
    header = read_header(weights)
    small = {name: _read_small(folder / name) for name in ("config.json", "genes.txt")}
    _require_same(folder, meta, {name: hashlib.sha256(data).hexdigest() for name, data in small.items()})
    try:
        config = Config.from_dict(json.loads(small["config.json"]))
    except (ConfigError, ValueError, RecursionError) as error:
        raise RunError(f"{folder / 'config.json'} cannot be used: {error}") from None
    genes = _genes(small["genes.txt"], folder / "genes.txt")
    expected: Mapping[str, TensorSpec] = {}
    if schema is not None:
        try:
            schema.facts(meta)
        except ValueError as error:
            raise RunError(f"{folder / 'meta.json'} cannot be used: {error}. Fit the model again.") from None
        expected = schema.tensors(config, meta, len(genes), header)
        check_header(header, expected, weights)
    _require_same(folder, meta, {weights.name: _digest(weights)})
    tensors, _ = load_state(weights)
    check_values(tensors, expected, weights)
    return StoredModel(config, tensors, genes, meta)


def _read_small(path: Path) -> bytes:
    """A file that is small in every model."""
    try:
        if path.stat().st_size > MOST_SMALL:
            raise RunError(f"{path} is too large for what it should hold. Fit the model again.")
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} could not be read: {error.strerror}. Fit the model again.") from error


def _require_same(folder: Path, meta: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Refuse files that are not those of which ``meta`` has the digests."""
    if strangers := [name for name, digest in digests.items() if digest != meta["files"].get(name)]:
        raise RunError(
            f"{', '.join(strangers)} in {folder} is not what was saved: it is damaged, edited, or of another model. Fit the "
            "model again."
        )


def _genes(data: bytes, path: Path) -> NDArray[Any]:
    try:
        genes = data.decode().removesuffix("\n").split("\n")
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}). Fit the model again.") from None
    if len(set(genes)) < len(genes) or not all(genes):
        raise RunError(f"{path} has names that are empty or repeat. Fit the model again.")
    return np.array(genes)


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        text = _read_small(path).decode()
        meta = json.loads(text)
        newer, older = int(meta["format"]) > FORMAT, int(meta["format"]) < FORMAT
        dict(meta["files"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise RunError(f"{path} is damaged. Fit the model again.") from None
    if newer:
        raise RunError(
            f"The model in {path.parent} was written by spatialgears {meta.get('versions', {}).get('spatialgears', '?')}, "
            f"newer than this one ({__version__}). Upgrade spatialgears to use it."
        )
    if older and is_sealed(text):
        raise RunError(
            f"The model in {path.parent} was written by an earlier version of spatialgears, which stored models otherwise. "
            "Fit the model again."
        )
    if older or not is_sealed(text):
        raise RunError(f"{path} is not what was saved: it is damaged or edited. Fit the model again.")
    return dict(meta)


def sealed(text: str) -> str:
    """The text of a JSON object with its own digest as the last entry, so that a change to it is seen."""
    return f'{text.rstrip()[:-1].rstrip()},\n "digest": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}'


def is_sealed(text: str) -> bool:
    """Whether a file's text is what :func:`sealed` gave, and a line's end."""
    body, _, _ = text.rpartition(',\n "digest": "')
    return bool(body) and sealed(f"{body}\n}}") + "\n" == text


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RunError(f"{path} could not be read: {error.strerror}. Fit the model again.") from error


def versions() -> dict[str, str]:
    """Versions of what decides a result."""
    found = {"spatialgears": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "scipy", "scikit-learn", "anndata"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def flatten(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A module's state under a prefix."""
    return {f"{name}.{key}": value for key, value in state.items()}


def part(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What :func:`flatten` put under a prefix."""
    return {
        key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")
    }


def remove(folder: str | Path) -> None:
    """Delete a folder of ours, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)
