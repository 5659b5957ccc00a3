"""``python -m spatialgears.cli`` is ``gears``."""

from __future__ import annotations

from spatialgears.cli.app import main

main()
