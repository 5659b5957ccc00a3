"""Put words, data and scripts together into one file that needs no network."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from spatialgears.errors import InputError
from spatialgears.report import page
from spatialgears.report.content import ReportContent
from spatialgears.report.encode import as_script, payload
from spatialgears.runtime.files import write_atomic

SCRIPTS = ("page.js", "points.js", "curves.js", "report.js")


def write_page(path: str | Path, content: ReportContent, *, max_cells: int = 200_000) -> Path:
    """Write one self-contained HTML file.

    Only the scripts written here can run in it, and it cannot reach any network: its content security policy
    names them by their digest and forbids every connection.

    Parameters
    ----------
    path
        File to write; folders are made.
    content
        What to say.
    max_cells
        The map draws at most so many cells, a random sample of all; the page says so.

    Returns
    -------
    Path
        The file written.
    """
    data = payload(content, max_cells=max_cells)
    plotly, script = _plotly(), "\n".join(map(_asset, SCRIPTS))
    text = Template(_asset("report.html")).substitute(
        title=escape(content.title),
        digests=" ".join(map(_digest, (plotly, script))),
        style=_asset("report.css"),
        facts=page.facts(content),
        summary=page.summary(content),
        warnings=page.warnings(content),
        inputs=page.inputs(content),
        self_checks=page.self_checks(content),
        domains=page.domains(content, data["fields"]),
        extras=page.extras(content.sections),
        reproduce=page.reproduce(content),
        unit=escape(content.unit),
        data=as_script(data),
        plotly=plotly,
        script=script,
    )
    write_atomic(path, text)
    return Path(path)


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InputError(
            "The report needs plotly, which is not installed.", 'Run: pip install "spatialgears[report]"'
        ) from error
    return str(get_plotlyjs()).replace("\r\n", "\n")


def _asset(name: str) -> str:
    return (files("spatialgears.report") / "assets" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _digest(script: str) -> str:
    """Name of an inline script in a content security policy."""
    return f"'sha256-{b64encode(sha256(script.encode('utf-8')).digest()).decode('ascii')}'"
