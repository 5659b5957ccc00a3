"""Settings of earlier versions: old files are read where nothing changes, and refused by name where something would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spatialgears.errors import ConfigError

#: Removed keys and the value that each is fixed at now.
FIXED: dict[str, Any] = {
    "expression.augment_thinned": False,
    "geometry.cfg_dropout": 0.0,
    "geometry.holdout": 0.0,
    "assembly.guidance": 1.0,
}
#: Removed values of keys that remain, and what to use instead.
REMOVED_VALUES: dict[tuple[str, Any], str] = {
    ("geometry.inputs", "both"): "expression or embedding",
    ("geometry.refiner", "absolute"): "residual or none",
}


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings without the keys that were removed.

    Raises
    ------
    ConfigError
        If a removed key holds another value than the one it is fixed at now, naming each such key.
    """
    kept: dict[str, Any] = {}
    refused: list[str] = []
    for stage, inner in values.items():
        if not isinstance(inner, Mapping):
            kept[stage] = inner
            continue
        kept[stage] = {}
        for name, value in inner.items():
            key = f"{stage}.{name}"
            if key in FIXED:
                if value != FIXED[key]:
                    refused.append(
                        f"{key} = {value!r}: this key was removed; it is fixed at {FIXED[key]!r} now"
                    )
            elif isinstance(value, str) and (instead := REMOVED_VALUES.get((key, value))):
                refused.append(f"{key} = {value!r}: this value was removed; use {instead}")
            else:
                kept[stage][name] = value
    if refused:
        raise ConfigError(
            "The configuration is of an earlier version of spatialgears and cannot be used:\n  - "
            + "\n  - ".join(refused),
            "Remove these keys, or use the version that wrote the file.",
        )
    return kept
