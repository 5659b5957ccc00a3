"""The readable part of the page, which needs no script: every word that comes from data is escaped here."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from spatialgears.metrics.wording import MAIN, MORE, NOT_SCORES
from spatialgears.plotting import palette
from spatialgears.report.content import ReportContent, Section, SelfCheck
from spatialgears.report.encode import DOMAIN
from spatialgears.text import number

LONG_TABLE = 20
LONG_TEXT, LONG = 30, ' class="long"'  # characters of a cell that is kept wide where a table scrolls
SHOWN_WARNINGS = 3
LEVELS = {
    "good": "Good",
    "fair": "Fair",
    "weak": "Weak",
    "none": "No signal",
    "unknown": "Not checked",
}


def verdict(content: ReportContent) -> str:
    """How far to trust the map, in one sentence, with the way to the warnings."""
    words = content.verdict or "The quality of this map is unknown: it was not checked."
    more = ""
    if content.warnings:
        more = f' <a href="#brief">{escape(number(len(content.warnings), "warning"))}</a>'
    level = f'<b class="level {content.level}">{escape(LEVELS[content.level])}</b>'
    return f'<p class="verdict">{level} {escape(words)}{more}</p>'


def numbers(content: ReportContent) -> str:
    """The few numbers that matter."""
    rows = content.numbers or [("Cells placed", f"{len(content.coords):,}")]
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows)


def warnings(content: ReportContent) -> str:
    """The gravest warnings in full, the others to be opened."""
    if not content.warnings:
        return '<p class="fine">No warnings.</p>'
    items = [f"<li>{escape(text)}</li>" for text in content.warnings]
    first, rest = items[:SHOWN_WARNINGS], items[SHOWN_WARNINGS:]
    more = ""
    if rest:
        more = f"<details><summary>{len(rest)} more</summary><ul>{''.join(rest)}</ul></details>"
    title = number(len(items), "warning").capitalize()
    return f'<div class="warning" role="note"><h3>{title}</h3><ul>{"".join(first)}</ul>{more}</div>'


def inputs(content: ReportContent) -> str:
    """The table of inputs."""
    return rows_table("Inputs", content.inputs) if content.inputs else ""


def rows_table(caption: str, rows: Sequence[Mapping[str, object]]) -> str:
    """A table of rows that need not have the same columns."""
    titles = list(dict.fromkeys(title for row in rows for title in row))
    return table(caption, titles, [[_cell(row.get(title, "")) for title in titles] for row in rows])


def self_checks(content: ReportContent) -> str:
    """How well held-out spots are placed."""
    if not content.self_check:
        return "<p>No self-check was made, so nothing here says how far to trust the map.</p>"
    about = (
        "<p>The true positions of dissociated cells are unknown. These scores come from held-out spots, whose positions are "
        "known but were hidden from the model. Beside them stands a simple reference that looks up the most similar "
        "spots.</p>"
    )
    return f'{about}<div class="checks">{"".join(map(_self_check, content.self_check))}</div>'


def _self_check(check: SelfCheck) -> str:
    known = MAIN | MORE
    main = [name for name in MAIN if name in check.model]
    more = [name for name in MORE if name in check.model]
    more += [name for name in check.model if name not in known and name not in NOT_SCORES]
    words = f"<p>{escape(check.words)}</p>" if check.words else ""
    hint = '<p class="hint">↑ higher is better, ↓ lower is better; the better of the two is bold.</p>'
    body = hint + _scores(check, main, check.title) if main else ""
    if more:
        body += f"<h4>More metrics</h4>{_scores(check, more, 'More metrics')}"
    table = f"<details><summary>Scores</summary>{body}</details>" if body else ""
    return f'<article class="card"><h3>{escape(check.title)}</h3>{words}{table}</article>'


def _scores(check: SelfCheck, names: Sequence[str], label: str) -> str:
    rows = "".join(_score_row(name, check.model[name], check.reference.get(name)) for name in names)
    head = '<tr><th scope="col">Metric</th><th scope="col" class="number">Model</th>'
    head += '<th scope="col" class="number">Simple reference</th></tr>'
    return _scroll(label, f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>")


def _score_row(name: str, model: float, reference: float | None) -> str:
    title, higher, asks = (MAIN | MORE).get(name, (name, None, ""))
    ahead = 0.0 if reference is None or higher is None else (model - reference) * (1 if higher else -1)
    arrow = {
        True: ' <abbr title="higher is better">↑</abbr>',
        False: ' <abbr title="lower is better">↓</abbr>',
        None: "",
    }[higher]
    small = f"<small>{escape(asks)}</small>" if asks else ""
    return (
        f'<tr><th scope="row">{escape(title)}{arrow}{small}</th>'
        f"{_score(model, ahead > 0)}{_score(reference, ahead < 0)}</tr>"
    )


def _score(value: float | None, better: bool) -> str:
    text = "–" if value is None or not np.isfinite(value) else f"{value:.3f}"
    mark = '<b>%s</b><span class="unseen"> (better)</span>' if better else "%s"
    return f'<td class="number{" better" if better else ""}">{mark % text}</td>'


def domains(content: ReportContent, fields: Sequence[Mapping[str, Any]]) -> str:
    """One row per domain: how many cells, how sure, and of which types most of them are."""
    if content.domains is None:
        return ""
    coded = palette.encode(pd.Series(content.domains))
    colors = next(dict(zip(f["names"], f["colors"], strict=True)) for f in fields if f["name"] == DOMAIN)
    columns = {name: pd.Series(values) for name, values in content.obs.items()}
    labels = next(
        (name for name, one in columns.items() if palette.is_categorical(one) and one.dtype != bool), None
    )
    titles = ["Domain", "Cells", "Share"]
    unit = "spot spacings" if content.spacing else f"in units of the {content.unit}"
    titles += [f"Median 90% radius, {unit}"] if content.uncertainty is not None else []
    titles += [f"Commonest {labels}"] if labels is not None else []
    rows = []
    for code, (name, count) in enumerate(zip(coded.names, coded.counts, strict=True)):
        inside = coded.codes == code
        dot = f'<i class="dot" style="background:{colors.get(name, palette.OTHERS)}"></i>'
        row = [f"{dot}{escape(name)}", f"{count:,}", f"{count / len(inside):.1%}"]
        if content.uncertainty is not None:
            row.append(_radius(content, np.asarray(content.uncertainty)[inside]))
        if labels is not None:
            row.append(escape(_commonest(columns[labels][inside])))
        rows.append(row)
    button = '<p><button type="button" data-color="domain">Colour the map by domain</button></p>'
    note = f"<p>{escape(content.domains_note)}</p>" if content.domains_note else ""
    return _part("domains", "Domains", note + table("Domains", titles, rows) + button)


def _commonest(labels: pd.Series, most: int = 3) -> str:
    """The commonest labels with their shares."""
    shares = labels.dropna().astype(str).value_counts(normalize=True)[:most]
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items()) or "–"


def extras(sections: Iterable[Section], name: str = "extra") -> str:
    """Sections of words, a picture and a table; ``name`` begins their identifiers."""
    parts = []
    for i, section in enumerate(sections):
        body = ""
        if section.png:
            source = b64encode(section.png).decode("ascii")
            body = f'<img src="data:image/png;base64,{source}" alt="{escape(section.alt or section.title)}">'
        body += "".join(f"<p>{escape(text)}</p>" for text in section.text.split("\n\n") if text.strip())
        if section.table:
            made, long = rows_table(section.title, section.table), len(section.table)
            folded = f"<details><summary>Table of {long} rows</summary>{made}</details>"
            body += made if long <= LONG_TABLE else folded
        parts.append(_part(f"{name}-{i + 1}", section.title, body))
    return "".join(parts)


def reproduce(content: ReportContent) -> str:
    """Command, versions and configuration."""
    parts = []
    if content.command:
        parts.append(f'<h3>Command</h3><pre tabindex="0">{escape(content.command)}</pre>')
    if content.versions:
        rows = [[escape(name), escape(str(version))] for name, version in content.versions.items()]
        parts.append(f"<h3>Versions</h3>{table('Versions', ['Package', 'Version'], rows)}")
    if content.config:
        lines = f'<pre tabindex="0">{escape(content.config)}</pre>'
        parts.append(f"<details><summary>Configuration (JSON)</summary>{lines}</details>")
    return "".join(parts) or "<p>Neither command, configuration nor versions were given.</p>"


def table(caption: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are already HTML; columns of numbers are set to the right."""
    numeric = [all(_looks_numeric(row[i]) for row in rows) for i in range(len(titles))]
    mark = [' class="number"' if flag else "" for flag in numeric]
    head = "".join(f'<th scope="col"{m}>{escape(title)}</th>' for m, title in zip(mark, titles, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{m or LONG * ('<' not in cell and len(cell) > LONG_TEXT)}>{cell}</td>"
            for m, cell in zip(mark, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return _scroll(caption, f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def _scroll(label: str, inner: str) -> str:
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{inner}</div>'


def _part(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2>{body}</section>'


def _cell(value: object) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    if isinstance(value, (float, np.floating)):
        return f"{value:,.4g}"
    return escape(str(value))


def _radius(content: ReportContent, values: np.ndarray) -> str:
    """The median, in spot spacings where these are known."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "–"
    return f"{np.median(finite / content.spacing):.1f}" if content.spacing else f"{np.median(finite):.2f}"


def _looks_numeric(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("-", "").strip("%–").isdigit() or cell in ("", "–")
