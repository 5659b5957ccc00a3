"""``gears simulate``: a tissue with known answer, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spatialgears.cli import output
from spatialgears.cli.options import Json
from spatialgears.errors import InputError


def simulate(
    out: Annotated[
        Path, typer.Option("--output", "--out", "-o", metavar="FOLDER", help="Folder to write to.")
    ],
    cells: Annotated[int, typer.Option(metavar="N", min=50, max=1_000_000, help="Number of cells.")] = 3000,
    sections: Annotated[int, typer.Option(metavar="N", min=1, max=50, help="Number of slides.")] = 2,
    genes: Annotated[int, typer.Option(metavar="N", min=50, max=50_000, help="Number of genes.")] = 300,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of everything random.")] = 0,
    as_json: Json = False,
) -> None:
    """Simulate slides (st_1.h5ad, ...), cells (sc.h5ad) and, apart, where the cells were (truth.h5ad)."""
    from spatialgears.datasets import simulate_tissue
    from spatialgears.io import write_h5ad
    from spatialgears.runtime.files import atomic_paths, unfinished

    out = out.expanduser()
    names = [*(f"st_{i + 1}.h5ad" for i in range(sections)), "sc.h5ad", "truth.h5ad"]
    there = [name for name in names if (out / name).exists()]
    if there and not unfinished(out, names):
        raise InputError(f"{out} holds {', '.join(there)} already.", "Name another folder.")
    tissue = simulate_tissue(n_cells=cells, n_sections=sections, n_genes=genes, seed=seed)
    written = []
    with atomic_paths(out, names) as paths:
        for name, adata in zip(names, [*tissue.slides, tissue.cells, tissue.truth], strict=True):
            write_h5ad(adata, paths[name])
            written.append({"path": str(out / name), "observations": adata.n_obs, "genes": adata.n_vars})
    if as_json:
        output.emit_json({"files": written, "seed": seed})
        return
    output.table(
        f"Written to {out}", ["file", "observations", "genes"], [list(row.values()) for row in written]
    )
    slides = " ".join(f"--st {row['path']}" for row in written[: len(tissue.slides)])
    typer.echo(f"Next: gears check {slides} --sc {out / 'sc.h5ad'}")
