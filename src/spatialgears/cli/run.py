"""``gears run``, ``demo``, ``fit``, ``reconstruct`` and ``report``: from files to coordinates."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spatialgears.cli import launch, options, output
from spatialgears.errors import InputError
from spatialgears.runtime.progress import ProgressView
from spatialgears.text import plain

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.model import GEARS
    from spatialgears.reconstruction import Reconstruction
    from spatialgears.run import RunFolder
    from spatialgears.validate.donors import CellsFrom

Out = Annotated[
    Path,
    typer.Option("--output", "--out", "-o", metavar="FOLDER", help="Folder for everything the run makes."),
]
Cells = Annotated[
    str, typer.Option("--sc", metavar="PATH", rich_help_panel="Input", help="The cells to place.")
]
ModelFolder = Annotated[
    Path, typer.Option("--model", "-m", metavar="FOLDER", help="Folder of a fitted model.")
]


def run(
    st: options.St,
    sc: Cells,
    out: Out,
    donor: options.Donor = None,
    cells_from: options.From = None,
    layer: options.Layer = None,
    sc_layer: options.ScLayer = None,
    st_genes: options.StGenes = None,
    sc_genes: options.ScGenes = None,
    coordinates: options.Coordinates = None,
    split: options.Split = None,
    types: options.Types = None,
    genes: options.Genes = None,
    regions: options.Regions = None,
    impute: options.Impute = None,
    abundance: options.Abundance = False,
    compare: options.Compare = None,
    spatial_key: options.SpatialKey = "spatial",
    transpose: options.Transpose = False,
    normalised: options.Normalised = False,
    preset: options.Preset = None,
    config: options.ConfigFile = None,
    assignments: options.Set = None,
    devices: launch.Devices = None,
    num_nodes: launch.NumNodes = None,
    as_json: options.Json = False,
) -> None:
    """Check, fit, reconstruct, self-check and report, in one folder; the same command resumes a run that stopped."""
    settings = launch.on_devices(options.load_config(preset, config, assignments), devices, num_nodes)
    whose = options.cells_from(cells_from)
    options.require_room()
    options.check_paths([*st, sc])
    options.require_apart(out, [*st, sc], kind="folder")
    if launch.launched(settings):
        return
    from spatialgears.analysis.answers import Questions
    from spatialgears.run import RunInputs
    from spatialgears.run import run as run_all
    from spatialgears.runtime.processes import is_first

    questions = Questions(regions, options.gene_list(impute), abundance, compare, types)
    how = options.Reading(layer, sc_layer, st_genes, sc_genes, coordinates, transpose)

    def read() -> tuple[list[AnnData], AnnData]:
        inputs = options.read_inputs(st, sc, how)
        assert inputs.cells is not None
        return inputs.slides, inputs.cells

    command = shlex.join(["gears", *sys.argv[1:]])
    shown = options.gene_list(genes)
    given = {
        "types": types,
        "genes": shown,
        "split": split,
        "questions": asdict(questions) if questions else None,
    }
    chosen = asdict(how) | {name: value for name, value in given.items() if value}
    inputs = RunInputs(
        st,
        sc,
        read,
        spatial_key,
        normalised,
        command,
        types=types,
        genes=shown,
        donors=donor,
        split=split,
        cells_from=whose,
        questions=questions,
        options=chosen,
    )
    with _followed(out) as progress:
        folder = run_all(inputs, out, settings, progress=progress, tell=progress.tell)
    if is_first():
        _tell(folder, as_json=as_json)


def demo(
    out: Out = Path("gears-demo"),
    cells: Annotated[
        int, typer.Option("--cells", metavar="N", min=200, help="Cells of the simulated tissue.")
    ] = 2000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Another tissue.")] = 0,
    preset: options.DemoPreset = None,
    config: options.ConfigFile = None,
    assignments: options.Set = None,
) -> None:
    """Simulate a tissue, place its cells, score them against the truth and write a report, in about a minute."""
    settings = options.load_config(preset if preset or config else "quick", config, assignments)
    out = out.expanduser()
    if settings.processes > 1:
        raise InputError("The demo is one process.", "Use gears run --devices N on its files.")
    options.require_room()
    from spatialgears.datasets import simulate_tissue
    from spatialgears.io import read, write_h5ad

    data = out / f"data-{cells}-{seed}"
    st, sc, truth = [data / "st_1.h5ad", data / "st_2.h5ad"], data / "sc.h5ad", data / "truth.h5ad"
    if not truth.exists():
        tissue = simulate_tissue(n_cells=cells, n_sections=2, seed=seed)
        for path, adata in zip([*st, sc, truth], [*tissue.slides, tissue.cells, tissue.truth], strict=True):
            write_h5ad(adata, path)
    from spatialgears.bench.references import knn
    from spatialgears.metrics import evaluate
    from spatialgears.metrics.wording import MAIN
    from spatialgears.run import RunInputs
    from spatialgears.run import run as run_all

    paths = [str(path) for path in st]
    command = shlex.join(["gears", *sys.argv[1:]])
    inputs = RunInputs(paths, str(sc), lambda: ([read(path) for path in st], read(sc)), command=command)
    with _followed(out / "run") as progress:
        folder = run_all(inputs, out / "run", settings, progress=progress, tell=progress.tell)
    known = read(truth).obsm["spatial"]
    rows = {
        "GEARS": evaluate(read(folder.cells).obsm["X_gears"], known),
        "kNN reference": evaluate(knn([read(path) for path in st], read(sc), seed=seed), known),
    }
    output.table(
        f"Coordinates of {len(known):,} simulated cells against the truth",
        ["method", *MAIN],
        [[name, *(row[key] for key in MAIN)] for name, row in rows.items()],
    )
    _tell(folder, as_json=False)


def fit(
    st: options.St,
    sc: Cells,
    model: Annotated[Path, typer.Option("--model", "-m", metavar="FOLDER", help="New folder for the model.")],
    donor: options.Donor = None,
    cells_from: options.From = None,
    layer: options.Layer = None,
    sc_layer: options.ScLayer = None,
    st_genes: options.StGenes = None,
    sc_genes: options.ScGenes = None,
    coordinates: options.Coordinates = None,
    split: options.Split = None,
    spatial_key: options.SpatialKey = "spatial",
    transpose: options.Transpose = False,
    normalised: options.Normalised = False,
    preset: options.Preset = None,
    config: options.ConfigFile = None,
    assignments: options.Set = None,
    devices: launch.Devices = None,
    num_nodes: launch.NumNodes = None,
) -> None:
    """Fit a model on slides and cells, and save it."""
    from spatialgears.storage.model_folder import require_free

    settings = launch.on_devices(options.load_config(preset, config, assignments), devices, num_nodes)
    whose = options.cells_from(cells_from)
    options.require_room()
    options.check_paths([*st, sc])
    model = options.require_apart(model, [*st, sc], option="--model", kind="folder")
    require_free(model)
    options.require_writable(model, option="--model")
    if launch.launched(settings):
        return
    how = options.Reading(
        layer, sc_layer, st_genes, sc_genes, coordinates, transpose, split, spatial_key, donor
    )
    inputs = options.read_inputs(st, sc, how)
    from spatialgears.model import GEARS
    from spatialgears.pipeline import cell_check, self_check
    from spatialgears.runtime.processes import is_first

    assert inputs.cells is not None
    with ProgressView() as progress:
        fitted = GEARS(settings).fit(
            inputs.slides,
            inputs.cells,
            spatial_key=spatial_key,
            normalised=normalised,
            names=inputs.names,
            donors=inputs.donors,
            cells_from=whose,
            progress=progress,
        )
    if not is_first():
        return
    fitted.save(model)
    found, on_spots = fitted.fitted_.cell_check, fitted.fitted_.checks
    seen = [] if found is None else cell_check.warnings(found, spots=self_check.trusted(on_spots))
    seen += self_check.warnings(on_spots, morans_i=fitted.panel_.morans_i, donors=fitted.fitted_.donors)
    _tell_checks([check.sentence for check in fitted.checks_], [*fitted.warnings_, *seen])
    typer.echo(f"The model is in {model}")


def reconstruct(
    model: ModelFolder,
    sc: Cells,
    out: Annotated[
        Path,
        typer.Option(
            "--output",
            "--out",
            "-o",
            metavar="FILE",
            help="The file to write: .h5ad, or .csv for the coordinates alone.",
        ),
    ],
    cells_from: options.From = None,
    layer: options.Layer = None,
    sc_layer: options.ScLayer = None,
    sc_genes: options.ScGenes = None,
    transpose: options.Transpose = False,
    normalised: options.Normalised = False,
    overwrite: options.Overwrite = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="assembly.KEY=VALUE",
            help="Set a value of the assembly, or threads=N; repeatable.",
        ),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print the seconds each step took.")] = False,
    devices: launch.Devices = None,
    num_nodes: launch.NumNodes = None,
) -> None:
    """Place cells with a fitted model; each call has its own rotation, so positions of two calls are not comparable."""
    whose = options.cells_from(cells_from)
    options.require_room()
    options.check_paths([sc])
    options.require_output(out, [".h5ad", ".csv"], [sc, model], overwrite=overwrite)
    from spatialgears.config import Config

    settings = launch.on_devices(Config.preset(), devices, num_nodes)
    if launch.launched(settings):
        return
    from spatialgears.runtime.training import join

    join(settings)
    from spatialgears.io import read
    from spatialgears.model import GEARS
    from spatialgears.runtime.files import fingerprint
    from spatialgears.runtime.processes import is_first

    fitted = GEARS.load(model)
    config = fitted.config.with_values(assignments or [])
    fitted.config = fitted.config.model_copy(update={"threads": config.threads, "assembly": config.assembly})
    if config != fitted.config:
        raise InputError(
            f"The model is fitted already; found --set {' --set '.join(assignments or [])}.",
            "Set threads and values of the assembly (assembly.KEY=VALUE) here, and all others for gears fit or gears run.",
        )
    digest = fingerprint(sc) if is_first() else None
    cells = read(
        sc, layer=sc_layer or layer, genes=sc_genes, transpose=transpose, backed=options.is_large(sc)
    )
    placed = _place(fitted, cells, normalised=normalised, cells_from=whose)
    if not is_first():
        return
    from spatialgears.analysis.annotate import described

    placed = described(placed, cells, panel=fitted.panel_, seed=fitted.config.seed)
    placed.write(cells, out, source=sc, digest=digest)
    typer.echo(placed.status)
    if profile:
        output.lines("Seconds", {k: round(v, 2) for k, v in placed.diagnostics["profile"].items()})
    _tell_checks(placed.self_check, placed.warnings)
    where = (
        f"The coordinates are in {out}"
        if out.suffix == ".csv"
        else f"The cells with their coordinates are in {out}, obsm['X_gears']"
    )
    typer.echo(where)


def report(
    model: ModelFolder,
    sc: Cells,
    out: Annotated[
        Path, typer.Option("--output", "--out", "-o", metavar="FILE", help="The .html file to write.")
    ],
    st: Annotated[
        list[str] | None, typer.Option("--st", metavar="PATH", help="Slides to draw beside the cells.")
    ] = None,
    cells_from: options.From = None,
    layer: options.Layer = None,
    sc_layer: options.ScLayer = None,
    st_genes: options.StGenes = None,
    sc_genes: options.ScGenes = None,
    coordinates: options.Coordinates = None,
    split: options.Split = None,
    types: options.Types = None,
    genes: options.Genes = None,
    spatial_key: options.SpatialKey = "spatial",
    transpose: options.Transpose = False,
    normalised: options.Normalised = False,
    overwrite: options.Overwrite = False,
) -> None:
    """Write the report of a fitted model and the cells it places."""
    slides, whose = st or [], options.cells_from(cells_from)
    options.require_room()
    options.check_paths([*slides, sc])
    options.require_output(out, [".html"], [*slides, sc, model], overwrite=overwrite)
    from spatialgears.model import GEARS
    from spatialgears.report import require_genes, require_plotly, require_types, write_report
    from spatialgears.validate import validate_inputs
    from spatialgears.validate.sampling import sample_cells

    require_plotly()
    fitted = GEARS.load(model)
    how = options.Reading(layer, sc_layer, st_genes, sc_genes, coordinates, transpose, split, spatial_key)
    inputs = options.read_inputs(slides, sc, how)
    assert inputs.cells is not None
    require_types(inputs.cells, types)
    shown = require_genes(inputs.cells, options.gene_list(genes))
    if slides:
        validate_inputs(
            inputs.slides,
            inputs.cells,
            rows=sample_cells(inputs.cells, seed=fitted.config.seed),
            spatial_key=spatial_key,
            normalised=normalised or not fitted.counts_,
            min_cells=1,
            names=inputs.names,
        )
    placed = _place(fitted, inputs.cells, normalised=normalised, cells_from=whose)
    write_report(
        out,
        fitted,
        placed,
        cells=inputs.cells,
        slides=inputs.slides,
        names=inputs.names,
        spatial_key=spatial_key,
        types=types,
        genes=shown,
        command=shlex.join(["gears", *sys.argv[1:]]),
        overwrite=overwrite,
    )
    typer.echo(placed.status)
    _tell_checks(placed.self_check, placed.warnings)
    typer.echo(f"The report is {out}")


@contextmanager
def _followed(out: Path) -> Iterator[ProgressView]:
    """The progress of a run; one that is stopped, by the user or by a cluster, says how to go on."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ProgressView() as progress:
        try:
            yield progress
        except (KeyboardInterrupt, SystemExit):
            progress.tell(f"Stopped. Run the same command again to resume in {out}.")
            raise


def _place(model: GEARS, cells: AnnData, *, normalised: bool, cells_from: CellsFrom | None) -> Reconstruction:
    with ProgressView() as progress:
        return model.reconstruct(
            cells, normalised=normalised or None, cells_from=cells_from, progress=progress
        )


def _tell_checks(sentences: list[str], warnings: list[str]) -> None:
    for sentence in sentences:
        typer.echo(plain(sentence))
    if warnings:
        typer.echo(plain("\n".join(["Warnings", *(f"  - {text}" for text in warnings)])))


def _tell(folder: RunFolder, *, as_json: bool) -> None:
    from spatialgears.model import GEARS

    model = GEARS.load(folder.model)
    files = {"cells": folder.cells, "places": folder.places, "model": folder.model}
    files |= {"imputed": folder.imputed, "abundance": folder.abundance, "comparison": folder.comparison}
    files |= {"report": folder.report, "log": folder.log}
    if as_json:
        facts: dict[str, Any] = {name: str(path) for name, path in files.items() if path.exists()}
        cells, spots = model.fitted_.cell_check, model.fitted_.checks
        facts |= {"cells_check": None if cells is None else cells.to_dict()}
        facts |= {"self_check": [check.to_dict() for check in spots], "warnings": folder.warnings()}
        output.emit_json(facts)
        return
    _tell_checks([check.sentence for check in model.checks_], folder.warnings())
    output.lines("Results", {name: str(path) for name, path in files.items() if path.exists()})
