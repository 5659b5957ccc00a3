"""The command ``gears``: one module per command, heavy imports inside the commands."""

from __future__ import annotations

from spatialgears.cli.app import main

__all__ = ["main"]
