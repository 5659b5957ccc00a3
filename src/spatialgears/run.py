"""Everything in one folder: check, fit, reconstruct, self-check and report, resumed after any interruption.

A step is done when its result has its final name, and every file is written whole or not at all. A run that was stopped at
any moment therefore continues from the last checkpoint and ends as it would have.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from spatialgears._version import __version__
from spatialgears.analysis.answers import Questions
from spatialgears.config import Config, Preset, flat
from spatialgears.errors import InputError, RunError
from spatialgears.runtime.files import fingerprint, read_regular, remove_leftovers, write_atomic
from spatialgears.runtime.processes import agreed, is_first
from spatialgears.runtime.progress import Progress, silent
from spatialgears.runtime.training import join
from spatialgears.storage import model_folder as store
from spatialgears.storage.run_folder import RunFolder, locked, logged
from spatialgears.text import duration, not_a_formula, number, size

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.model import GEARS
    from spatialgears.pipeline.cost import Cost
    from spatialgears.pipeline.prepare import Prepared
    from spatialgears.reconstruction import Reconstruction
    from spatialgears.validate import ValidInputs
    from spatialgears.validate.donors import CellsFrom

logger = logging.getLogger(__name__)

#: What a run answers where nothing else is asked.
ONLY_PLACES = Questions()
FITTED, DONE = 1, 2  # the state of the folder, which the first process sends to the others


@dataclass(frozen=True)
class RunInputs:
    """Where the inputs are, how to read them, and how they are to be understood.

    ``split`` is the column of ``.obs``, or "auto", by which a file of several sections is taken apart. ``options`` names
    what else decides how ``read`` understands them; paths are known by their contents.
    """

    st: Sequence[str]
    sc: str
    read: Callable[[], tuple[list[AnnData], AnnData]]
    spatial_key: str = "spatial"
    normalised: bool = False
    command: str = ""
    types: str | None = None
    genes: Sequence[str] = ()
    donors: Sequence[str] | None = None
    split: str | None = None
    cells_from: CellsFrom | None = None
    questions: Questions = ONLY_PLACES
    options: Mapping[str, Any] = field(default_factory=dict)


def run(
    inputs: RunInputs,
    folder: str | Path,
    config: Config,
    *,
    progress: Progress = silent,
    tell: Callable[[str], None] | None = None,
) -> RunFolder:
    """Do everything that is not done yet in a run folder, which is made if it is not there.

    A folder of other inputs or another configuration is refused, and so are results that are not what the run wrote and
    inputs that change meanwhile. ``tell`` is called with a line for the user: what the inputs are, what the run will
    take, what is there already.
    """
    from spatialgears.model import GEARS
    from spatialgears.pipeline.foreseen import require_sets

    def say(text: str) -> None:
        logger.info("%s", text)
        if tell is not None:
            tell(text)

    out = RunFolder(Path(folder).expanduser())
    require_sets(config, len(inputs.st))
    join(config)
    if not is_first():
        return _follow(out, inputs, config)
    _refuse_strangers(out)
    with locked(out.root), logged(out.log):
        logger.info("spatialgears %s: %s", __version__, inputs.command or "from Python")
        out.require_plain()
        remove_leftovers(out.root, [path.name for path in (out.manifest, *out.made)])
        described = _described(inputs, config)
        given = _Given.read(inputs)
        valid, prepared, cost = _prepared(given, inputs, config)
        begun = out.manifest.exists()
        _require_unchanged(described, _described(inputs, config))
        manifest = _claim(out, described)
        _refuse_changed(out, manifest)
        fitted = (out.model / "meta.json").exists()
        done = bool(manifest.get("results")) and all(path.exists() for path in out.results)
        agreed(FITTED * fitted + DONE * done)
        helping = prepared.other_genes
        genes = f"{number(len(valid.genes), 'gene')} in common"
        genes += f", and {number(helping, 'gene')} of the cells alone that help" if helping else ""
        say(
            f"{number(sum(map(len, valid.coords)), 'spot')} of {number(len(given.slides), 'slide')}, "
            f"{number(given.cells.n_obs, 'cell')}, {genes}. Donors: {valid.donors.words}."
        )
        if done:
            say(
                f"Everything is done already in {out.root}; nothing was changed. To do it again, choose another folder with "
                "-o, or delete this one."
            )
            store.remove(out.checkpoints)  # a run that was killed after its last result has left them
            return out
        if begun:
            say(f"Resuming in {out.root}" + (": the model is fitted already." if fitted else "."))
        else:
            say(
                f"This takes about {duration(cost.seconds)} and {size(cost.peak_bytes)} of memory on this machine "
                f"when it is idle. If it is stopped, the same command resumes in {out.root}."
            )
        warnings = [*prepared.warnings, *prepared.foreseen]
        for text in warnings:
            logger.log(logging.WARNING if tell is None else logging.INFO, "%s", text)
        if tell is not None and warnings:
            tell("\n".join(["Warnings", *(f"  - {text}" for text in warnings)]))
        if fitted:
            model = _loaded(out, config)
        else:
            model = GEARS(config).fit_prepared(prepared, checkpoint=out.checkpoints, progress=progress)
            store.remove(out.model)
            model.save(out.model)
            agreed(FITTED)
        placed = model.reconstruct(
            given.cells, normalised=inputs.normalised, cells_from=inputs.cells_from, progress=progress
        )
        placed = _written(out, model, placed, given, inputs, digest=manifest["inputs"][inputs.sc])
        manifest["warnings"] = placed.warnings
        for text in (*placed.self_check, *(f"warning: {text}" for text in placed.warnings)):
            logger.info("%s", text)
        manifest["results"] = {path.name: fingerprint(path) for path in out.made if path.exists()}
        _write(out.manifest, manifest)
        store.remove(out.checkpoints)
        logger.info("done")
    return out


@dataclass(frozen=True, eq=False)
class _Given:
    """The inputs as read, sections of one file taken apart."""

    slides: list[AnnData]
    cells: AnnData
    names: list[str]  # of the slides, then of the cells
    donors: Sequence[str] | None

    @classmethod
    def read(cls, inputs: RunInputs) -> _Given:
        from spatialgears.validate.sections import split_slides

        slides, cells = inputs.read()
        slides, names, donors = split_slides(
            slides, inputs.st, inputs.split, spatial_key=inputs.spatial_key, donors=inputs.donors
        )
        return cls(slides, cells, [*names, inputs.sc], donors)


def _prepared(given: _Given, inputs: RunInputs, config: Config) -> tuple[ValidInputs, Prepared, Cost]:
    """Valid inputs, what the model learns from, and what the run costs; what cannot be used is refused here."""
    from spatialgears.analysis.answers import require_regions, samples_of
    from spatialgears.pipeline.cost import require_memory
    from spatialgears.pipeline.prepare import prepare
    from spatialgears.report import require_genes, require_types
    from spatialgears.validate.sampling import validate_sampled

    require_types(given.cells, inputs.types)
    require_genes(given.cells, [*inputs.genes, *inputs.questions.genes])
    questions = inputs.questions.about(given.cells)
    require_types(given.cells, questions.types)
    require_regions(given.slides, questions.regions)
    if questions.compare:
        samples_of(given.cells, questions.compare)
    valid = validate_sampled(
        given.slides,
        given.cells,
        seed=config.seed,
        spatial_key=inputs.spatial_key,
        normalised=inputs.normalised,
        names=given.names,
        donors=given.donors,
        cells_from=inputs.cells_from,
    )
    prepared = prepare(valid, config)
    cost = prepared.cost(config, n_cells=given.cells.n_obs)
    require_memory(cost)
    return valid, prepared, cost


def _written(
    out: RunFolder, model: GEARS, placed: Reconstruction, given: _Given, inputs: RunInputs, *, digest: str
) -> Reconstruction:
    """The reconstruction with all that a run adds to it, after every result but the manifest was written."""
    from spatialgears.analysis.annotate import described
    from spatialgears.analysis.answers import answered
    from spatialgears.io import write_h5ad
    from spatialgears.report import require_plotly, write_report
    from spatialgears.validate import slide_titles

    cells, slides, key, seed = given.cells, given.slides, inputs.spatial_key, model.config.seed
    titles, kinds = slide_titles(given.names[:-1]), inputs.types
    placed = described(
        placed, cells, slides, titles=titles, panel=model.panel_, spatial_key=key, types=kinds, seed=seed
    )
    answers = None
    if inputs.questions:
        asked = inputs.questions.about(cells)
        placed, answers = answered(
            placed, cells, slides, questions=asked, titles=titles, spatial_key=key, seed=seed
        )
        for found, path in ((answers.imputed, out.imputed), (answers.abundance, out.abundance)):
            if found is not None:
                write_h5ad(found, path)
        if answers.comparison is not None:
            write_atomic(out.comparison, answers.comparison.rename(index=not_a_formula).to_csv())
    placed.write(cells, out.places)
    placed.write(cells, out.cells, source=inputs.sc, digest=digest)
    try:
        require_plotly()
    except InputError as error:
        logger.warning("no report was written. %s", error)
        return placed
    write_report(
        out.report,
        model,
        placed,
        cells=cells,
        slides=slides,
        names=given.names,
        spatial_key=key,
        types=kinds,
        genes=inputs.genes,
        answers=answers,
        command=inputs.command,
        overwrite=True,
    )
    return placed


def _follow(out: RunFolder, inputs: RunInputs, config: Config) -> RunFolder:
    """What processes other than the first do: their share of the work, and nothing else."""
    from spatialgears.model import GEARS

    given = _Given.read(inputs)
    state = agreed(0)
    if state & DONE:
        return out
    if not state & FITTED:
        GEARS(config).fit(
            given.slides,
            given.cells,
            spatial_key=inputs.spatial_key,
            normalised=inputs.normalised,
            names=given.names,
            donors=given.donors,
            cells_from=inputs.cells_from,
            checkpoint=out.checkpoints,
        )
        agreed(0)  # the first has saved what all place cells with
    model = _loaded(out, config)
    model.reconstruct(given.cells, normalised=inputs.normalised, cells_from=inputs.cells_from)
    return out


def _loaded(out: RunFolder, config: Config) -> GEARS:
    """The run's model, with as many threads as are wanted now."""
    from spatialgears.model import GEARS

    model = GEARS.load(out.model)
    model.config = model.config.model_copy(update={"threads": config.threads})
    return model


def _refuse_strangers(out: RunFolder) -> None:
    """Refuse a folder of someone else's files before anything is written to it."""
    if os.path.lexists(out.manifest) or not out.root.is_dir():
        return
    strangers = [p.name for p in out.root.iterdir() if p.name != out.log.name and not p.name.startswith(".")]
    if strangers:
        raise InputError(
            f"{out.root} is not empty and not a run's folder (it holds {', '.join(sorted(strangers)[:5])}).",
            "Choose a new or empty folder with -o.",
        )


def _refuse_changed(out: RunFolder, manifest: Mapping[str, Any]) -> None:
    """Refuse results that were damaged or edited since they were written; they are not overwritten."""
    for name, digest in manifest.get("results", {}).items():
        path = out.root / Path(name).name
        if path.exists() and fingerprint(path) != digest:
            raise RunError(
                f"{path} is not what the run wrote: it is damaged or was edited. Delete it, or move it if you changed it "
                "yourself, and run again."
            )


def _write(path: Path, manifest: Mapping[str, Any]) -> None:
    write_atomic(path, store.sealed(json.dumps(manifest, indent=1)) + "\n")


def _described(inputs: RunInputs, config: Config) -> dict[str, Any]:
    """What a run is known by: its inputs by their contents, how they are read, configuration and versions."""
    return {
        "inputs": {path: fingerprint(path) for path in [*inputs.st, inputs.sc]},
        "reading": {
            "spatial_key": inputs.spatial_key,
            "normalised": inputs.normalised,
            "donors": None if inputs.donors is None else list(inputs.donors),
            "cells_from": inputs.cells_from,
            **_known(inputs.options),
        },
        "config": config.model_dump(mode="json"),
        "versions": store.versions(),
        "command": inputs.command,
    }


def _require_unchanged(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse inputs that changed while they were read."""
    files = [({**one["inputs"], **one["reading"]["files"]}) for one in (before, after)]
    if changed := [path for path, digest in files[0].items() if files[1].get(path) != digest]:
        raise InputError(
            f"{', '.join(changed)} changed while it was read.", "Wait until it is complete, and run again."
        )


def _claim(out: RunFolder, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest, written if the run is new; a folder that belongs to another run is refused."""
    if not out.manifest.exists():
        _write(out.manifest, manifest)
        return manifest
    try:
        text = read_regular(out.manifest).decode()
        before: dict[str, Any] = json.loads(text)
        whole = store.is_sealed(text)
    except (OSError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise RunError(f"{out.manifest} is damaged. Delete {out.root} and run again.")
    del before["digest"]
    differences = _differences(before, manifest)
    if differences:
        raise InputError(
            f"{out.root} belongs to another run, whose results stay as they are:\n  - "
            + "\n  - ".join(differences),
            "Choose another folder with -o, give the settings and inputs of that run, or delete its folder.",
        )
    return before


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON holds them, with the digest of every file they name."""
    named = [text for value in options.values() for text in (value if isinstance(value, list) else [value])]
    files = {path: fingerprint(path) for path in named if isinstance(path, str) and Path(path).is_file()}
    return {**options, "files": files}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    found = []
    if list(before.get("inputs", {}).values()) != list(now["inputs"].values()):
        found.append(
            f"its inputs were {', '.join(before.get('inputs', {}))}, with other contents or in another order"
        )
    read, reads = flat(before.get("reading") or {}), flat(now["reading"])
    for key in sorted({*read, *reads}):
        one, other = ("not given" if part.get(key) is None else part[key] for part in (read, reads))
        if one != other and key.startswith("files."):
            found.append(f"{key.removeprefix('files.')} is another file, or has changed")
        elif one != other:
            found.append(f"{key.removeprefix('questions.')} was {one}, now {other}")
    was, wanted = flat(before.get("config", {})), flat(now["config"])
    presets = {name: flat(Config.preset(name).model_dump(mode="json")) for name in get_args(Preset)}
    old, new = (
        min(presets, key=lambda name: sum(presets[name][key] != config.get(key) for key in presets[name]))
        for config in (was, wanted)
    )
    if old != new:
        found.append(f"its preset was {old}, now {new}")
    for key, value in wanted.items():
        told = old != new and (was.get(key), value) == (presets[old][key], presets[new][key])
        if key != "threads" and was.get(key) != value and not told:
            found.append(f"{key} was {was.get(key)}, now {value}")
    if before.get("versions", {}).get("spatialgears") != now["versions"]["spatialgears"]:
        found.append(f"it was made by spatialgears {before.get('versions', {}).get('spatialgears')}")
    return found
