"""Write the report: words, data and scripts in one file that needs no network."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import numpy as np

from spatialgears.analysis import lookup
from spatialgears.analysis.subject import require_genes, require_types
from spatialgears.errors import InputError, require_new
from spatialgears.io.reading import take_layer
from spatialgears.report import page
from spatialgears.report.content import ReportContent
from spatialgears.report.encode import as_script, payload
from spatialgears.report.gather import report_content
from spatialgears.runtime.files import write_atomic
from spatialgears.text import number
from spatialgears.validate import input_names

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.analysis.answers import Answers
    from spatialgears.model import GEARS
    from spatialgears.reconstruction import Reconstruction

SCRIPTS = ("page.js", "data.js", "points.js", "figure.js", "keys.js", "save.js", "curves.js", "report.js")


def write_report(
    path: str | Path,
    model: GEARS,
    placed: Reconstruction,
    *,
    cells: AnnData,
    slides: Sequence[AnnData] | AnnData = (),
    names: Sequence[str] = (),
    spatial_key: str = "spatial",
    types: str | None = None,
    genes: Sequence[str] = (),
    answers: Answers | None = None,
    layer: str | None = None,
    command: str = "",
    overwrite: bool = False,
) -> Path:
    """Write the report that ``gears run`` writes: one HTML file, to be opened, mailed or archived.

    Parameters
    ----------
    path
        File to write; folders are made.
    model, placed
        A fitted model, and where it put the cells.
    cells, slides
        What was placed and what the model was fitted on; not modified. Without slides, what compares the two is left out.
    names
        What to call the slides and, after them, the cells; paths, for example.
    spatial_key
        Key of ``obsm`` with the places of spots.
    types
        Column of ``cells.obs`` with cell types; default: one that is named so, as "cell_type" is.
    genes
        Genes that the report can show besides those that the model uses.
    answers
        Regions, genes and types that a run was asked for besides the places.
    layer
        Layer with the values that the model was given, or ``"raw"``; default: ``.X``.
    command
        The command that makes the result again, to be shown.
    overwrite
        Replace a file that is there.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    InputError
        If the file is there already, the cells are not those that were placed, or plotly, which draws the report, is
        missing.

    Examples
    --------
    >>> import spatialgears as sg
    >>> model = sg.GEARS("quick").fit(slide, cells)  # doctest: +SKIP
    >>> rec = model.reconstruct(cells)  # doctest: +SKIP
    >>> sg.write_report("report.html", model, rec, cells=cells, slides=slide)  # doctest: +SKIP
    """
    require_plotly()
    require_new(path, overwrite=overwrite)
    require_types(cells, types)
    slides = [slides] if hasattr(slides, "obsm") else list(slides)
    if not np.array_equal(cells.obs_names, placed.obs_names):
        raise InputError(
            f"The cells are not those that were placed: {number(cells.n_obs, 'cell')}, "
            f"and {number(len(placed.obs_names), 'place')} of cells that have other names or another order.",
            "Pass the same cells as to reconstruct.",
        )
    titles = input_names(names, len(slides))
    for name, slide in zip(titles, slides, strict=False):
        if spatial_key not in slide.obsm:
            raise InputError(
                f"{name} has no obsm[{spatial_key!r}]; obsm has {lookup.listed(slide.obsm)}.",
                "Name one of these as spatial_key.",
            )
    taken = take_layer(cells, layer, titles[-1])
    content = report_content(
        model,
        placed,
        taken,
        slides=[take_layer(slide, layer, name) for slide, name in zip(slides, titles, strict=False)],
        names=names,
        spatial_key=spatial_key,
        types=types,
        genes=require_genes(taken, genes),
        answers=answers,
        command=command,
    )
    return write_page(path, content)


def require_plotly() -> None:
    """Refuse to go on without plotly, which draws the report."""
    if find_spec("plotly") is None:
        raise InputError("The report needs plotly.", "Install it with: pip install 'spatialgears[report]'")


def write_page(path: str | Path, content: ReportContent, *, max_cells: int = 200_000) -> Path:
    """Write one self-contained HTML file, whose map draws at most ``max_cells``, a random sample of all.

    Only the script written here, which unpacks plotly, can run in it, and it cannot reach any network: its content
    security policy names it by its digest and forbids every connection.
    """
    data = payload(content, max_cells=max_cells)
    script = "\n".join(map(_asset, SCRIPTS))
    text = Template(_asset("report.html")).substitute(
        title=escape(content.title),
        digest=_digest(script),
        style=_asset("report.css"),
        verdict=page.verdict(content),
        numbers=page.numbers(content),
        warnings=page.warnings(content),
        inputs=page.inputs(content),
        checks=page.extras(content.checks, "check"),
        self_checks=page.self_checks(content),
        domains=page.domains(content, data["fields"]),
        extras=page.extras(content.sections),
        reproduce=page.reproduce(content),
        data=as_script(data),
        plotly=_plotly(),
        script=script,
    )
    write_atomic(path, text)
    return Path(path)


def _plotly() -> str:
    """The library, packed as genes are."""
    require_plotly()
    from plotly.offline import get_plotlyjs

    return b64encode(zlib.compress(get_plotlyjs().encode("utf-8"))).decode("ascii")


def _asset(name: str) -> str:
    return (files("spatialgears.report") / "assets" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _digest(script: str) -> str:
    """Name of an inline script in a content security policy."""
    return f"'sha256-{b64encode(sha256(script.encode('utf-8')).digest()).decode('ascii')}'"
