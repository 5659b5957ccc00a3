"""What commands say: tables on a terminal, plain lines in a pipe, JSON for machines."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from spatialgears.text import plain


def emit_json(value: Any) -> None:
    """Write strict JSON to standard output; what is not a number becomes null."""
    typer.echo(json.dumps(_plain(value), indent=2, allow_nan=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on a terminal; otherwise tab-separated lines under the title."""
    cells = [[_text(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        typer.echo("\n".join([title, "\t".join(columns), *("\t".join(row) for row in cells)]))
        return
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        drawn.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*row)
    Console().print(drawn, markup=False)


def lines(title: str, values: Mapping[str, Any]) -> None:
    """Named values, one per line."""
    width = max(map(len, values))
    typer.echo("\n".join([title, *(f"  {name:<{width}}  {_text(value)}" for name, value in values.items())]))


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else plain(str(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
