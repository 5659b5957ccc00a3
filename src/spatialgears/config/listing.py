"""All fields of the configuration as a page: ``python -m spatialgears.config.listing > docs/settings.md``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from spatialgears.config.presets import PRESETS
from spatialgears.config.root import Config

_INTRODUCTION = """\
# Settings

Most users change none of these. Set one with `--set KEY=VALUE`, in a file for `--config`, or in Python:

```sh
gears run ... --set geometry.steps=800 --set seed=7
gears run ... --config mine.json      # {"preset": "quick", "geometry": {"steps": 800}, "seed": 7}
```

```python
config = sg.Config.preset("quick").with_values({"geometry.steps": 800, "seed": 7})
```

A column with a preset's name shows its value where it differs from `default`.

"""
_CONSTANTS = """
## The method's constants, for the `paper` preset and ablations

These values are part of the method. Presets differ in them, or a table of the benchmark varies them. There is usually no
reason to change them for your own data.

"""


@dataclass(frozen=True)
class Row:
    """A field of the configuration."""

    key: str  # as ``--set`` takes it
    role: Literal["setting", "constant"]  # a setting for users, or a constant of the method
    values: dict[str, Any]  # by preset
    description: str  # what it decides
    when: str  # when to change a setting


def rows(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[Row]:
    """All fields, those of the stages by their dotted keys."""
    presets = {name: Config.preset(name).model_dump(mode="json") for name in PRESETS}
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from rows(inner, f"{name}.")
            continue
        section = prefix.rstrip(".")
        values = {preset: (found[section] if section else found)[name] for preset, found in presets.items()}
        extra = field.json_schema_extra
        assert isinstance(extra, dict) and field.description
        yield Row(f"{prefix}{name}", extra["role"], values, field.description, extra.get("when", ""))  # type: ignore[arg-type]


def page() -> str:
    """The page ``docs/settings.md``."""
    fields = list(rows())
    settings = [row for row in fields if row.role == "setting"]
    constants = [row for row in fields if row.role == "constant"]
    return _INTRODUCTION + _table(settings, "change it when") + _CONSTANTS + _table(constants, None)


def _table(fields: list[Row], last: str | None) -> str:
    others = [name for name in PRESETS if name != "default"]
    titles = [
        "key",
        "`default`",
        *(f"`{name}`" for name in others),
        "what it decides",
        *([last] if last else []),
    ]
    lines = [titles, ["---"] * len(titles)]
    for row in fields:
        shown = [_shown(row.values["default"])]
        shown += [
            "" if row.values[name] == row.values["default"] else _shown(row.values[name]) for name in others
        ]
        lines.append([f"`{row.key}`", *shown, row.description, *([row.when] if last else [])])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _shown(value: Any) -> str:
    if isinstance(value, int) and value >= 10_000_000:
        return "no limit"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    sys.stdout.write(page())
