"""spatialgears: predict where in the tissue dissociated single cells came from.

The public rooms are loaded when first used, so that ``import spatialgears`` and ``gears --help`` stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spatialgears._version import __version__

_ATTRIBUTES = {
    "Config": "spatialgears.config",
    "GEARS": "spatialgears.model",
    "Reconstruction": "spatialgears.model",
    "read": "spatialgears.io",
    "InputError": "spatialgears.errors",
    "check_inputs": "spatialgears.check",
    "write_report": "spatialgears.report",
}
_MODULES = {
    "metrics": "spatialgears.metrics",
    "datasets": "spatialgears.datasets",
    "io": "spatialgears.io",
    "tl": "spatialgears.analysis",
    "pl": "spatialgears.plotting",
}
__all__ = ["__version__", *_ATTRIBUTES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _ATTRIBUTES:
        return getattr(import_module(_ATTRIBUTES[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'spatialgears' has no attribute {name!r}; there are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
