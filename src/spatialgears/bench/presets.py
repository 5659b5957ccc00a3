"""Our presets as the benchmark runs them: a preset, and the values that the user changed with ``--set``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spatialgears.config import Config, flat
from spatialgears.errors import InputError

#: Values that the benchmark sets itself, and the options that choose them.
OWN_OPTIONS = {"seed": "--seeds", "threads": "--threads"}

#: Fields that older rows lack, and the value with which the method is as it was without them.
ADDED = {"supervision.pool": 0.0, "geometry.nca_gate": True}


def configured(preset: str, values: Sequence[str] = ()) -> Config:
    """The preset with ``stage.key=value`` changes; refuses changes that the benchmark would overwrite."""
    for value in values:
        key = value.partition("=")[0].strip()
        if key in OWN_OPTIONS:
            raise InputError(f"--set cannot change {key} in a benchmark.", f"Use {OWN_OPTIONS[key]}.")
    return Config.preset(preset).with_values(values)


def changes(config: Config, preset: str) -> dict[str, Any]:
    """The values of a configuration that differ from the preset's, by ``stage.key``.

    Keys of rows rest on these, not on the whole configuration: a field that becomes a constant of the method
    leaves the keys as they are.
    """
    before, now = (flat(one.model_dump(mode="json")) for one in (Config.preset(preset), config))
    return {key: value for key, value in sorted(now.items()) if before[key] != value}


def title(preset: str, config: Config) -> str:
    """What tables call a changed preset: its name, then each change as ``--set`` takes it."""
    changed = changes(config, preset).items()
    return ", ".join([preset, *(f"{key}={json.dumps(value)}" for key, value in changed)])


def same_method(config: Config, stored: Mapping[str, Any]) -> bool:
    """Whether a stored configuration had the same value for every field that the stages have now."""
    now, then = flat(config.model_dump(mode="json")), ADDED | flat(stored)
    return all(key in then and then[key] == value for key, value in now.items() if "." in key)
