"""Models on disk: a folder of ``config.json``, ``weights.safetensors``, ``genes.txt`` and ``meta.json``. No pickle."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from spatialgears._version import __version__
from spatialgears.config import Config
from spatialgears.engine import load_state, save_state, write_atomic
from spatialgears.errors import ConfigError, InputError, RunError

FORMAT = 1
FILES = ("config.json", "weights.safetensors", "genes.txt", "meta.json")


@dataclass(frozen=True)
class StoredModel:
    """What a model folder holds: configuration, named tensors, gene names, and JSON-able facts."""

    config: Config
    tensors: dict[str, Tensor]
    genes: np.ndarray
    meta: dict[str, Any]


def save_model(folder: str | Path, model: StoredModel, *, overwrite: bool = False) -> None:
    """Write a model folder; ``meta.json`` comes last, so that a folder without it is not a model."""
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        is_model = all((folder / name).exists() for name in FILES)
        if not overwrite:
            raise InputError(
                f"{folder} exists and is not empty.", "Choose another folder, or pass overwrite=True for a model folder."
            )
        if not is_model and {p.name for p in folder.iterdir()} - set(FILES):
            raise InputError(f"{folder} holds files that are not a model.", "Choose another folder; nothing was changed.")
        (folder / "meta.json").unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "config.json", model.config.to_json())
    write_atomic(folder / "genes.txt", "".join(f"{gene}\n" for gene in model.genes))
    save_state(folder / "weights.safetensors", model.tensors, {"genes": len(model.genes)})
    meta = {"format": FORMAT, "versions": versions(), **model.meta}
    write_atomic(folder / "meta.json", json.dumps(meta, indent=1, default=float) + "\n")


def load_model(folder: str | Path) -> StoredModel:
    """Read a model folder, refusing what is missing, damaged, or from a newer format."""
    folder = Path(folder)
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) if folder.is_dir() else "no such folder"
        raise InputError(
            f"{folder} is not a saved model: {', '.join(missing)} missing (found: {found or 'nothing'}).",
            "Give the folder that model.save() wrote; `gears run -o out/` writes out/model.",
        )
    try:
        meta = json.loads((folder / "meta.json").read_text())
        config = Config.from_dict(json.loads((folder / "config.json").read_text()))
        genes = np.array((folder / "genes.txt").read_text().splitlines())
    except (ValueError, OSError, ConfigError) as error:
        raise RunError(f"The model in {folder} is damaged: {error}. Fit it again.") from None
    if not isinstance(meta, dict) or int(meta.get("format", 0)) > FORMAT:
        raise RunError(
            f"The model in {folder} was written by spatialgears {meta.get('versions', {}).get('spatialgears', '?')}, newer "
            f"than this one ({__version__}). Upgrade spatialgears to use it."
        )
    tensors, facts = load_state(folder / "weights.safetensors")
    if facts.get("genes") != len(genes):
        raise RunError(
            f"genes.txt in {folder} lists {len(genes)} genes, the weights are for {facts.get('genes')}: the files do not "
            "belong together. Fit the model again."
        )
    return StoredModel(config, tensors, genes, meta)


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
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


def remove(folder: str | Path) -> None:
    """Delete a folder of ours, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)
