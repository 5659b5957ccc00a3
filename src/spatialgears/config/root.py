"""The whole configuration: one frozen object, from a preset, a file or single values, with errors that name the key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from spatialgears.config.presets import PRESETS
from spatialgears.config.removed import without_removed
from spatialgears.config.settings import (
    AssemblyConfig,
    ExpressionConfig,
    GeometryConfig,
    Stage,
    SupervisionConfig,
    setting,
)
from spatialgears.errors import ConfigError
from spatialgears.text import similar_names


class Config(Stage):
    """Everything that decides a result, apart from the data.

    Examples
    --------
    >>> Config.preset("quick").with_values(["geometry.steps=200", "seed=7"]).geometry.steps
    200
    """

    seed: Annotated[int, Field(ge=0, lt=2**32)] = setting(
        0, "decides everything random", when="you want to see how much of a result is chance"
    )
    threads: Annotated[int, Field(ge=0, le=1024)] = setting(
        0,
        "CPU threads; 0: OMP_NUM_THREADS, or as many as affinity, control group and SLURM allow, at most 8",
        when="you share the machine: fewer",
    )
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = setting(
        "auto",
        "where networks are trained: cpu, cuda (NVIDIA), mps (Apple), or auto: cuda if it is there, else cpu",
        when="you have a GPU and want to train on the CPU, or on an Apple GPU",
    )
    devices: Annotated[int, Field(ge=1)] = setting(
        1,
        "processes per machine, one per GPU if there are GPUs; `--devices` sets it",
        when="you have several GPUs",
    )
    num_nodes: Annotated[int, Field(ge=1)] = setting(
        1, "machines, under SLURM or torchrun; `--num-nodes` sets it", when="you use a cluster"
    )
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = setting(
        "32-true",
        "number format of training",
        when="your GPU supports `bf16-mixed` or `16-mixed`, which are faster",
    )
    compile: bool = setting(
        False,
        "compile stage C's training steps with torch.compile, which needs minutes at the start and a C++ compiler; "
        "dropout is drawn differently, so results change as with a different seed",
        when="training takes hours; `gears bench scaling` prints the gain",
    )
    expression: ExpressionConfig = ExpressionConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    geometry: GeometryConfig = GeometryConfig()
    assembly: AssemblyConfig = AssemblyConfig()

    @property
    def panel_settings(self) -> ExpressionConfig:
        """``expression`` with the panel size that applies: ``encoder_genes`` if the generators see the embedding alone."""
        found = self.expression
        genes = found.encoder_genes if self.geometry.inputs == "embedding" else found.n_genes
        return found.model_copy(update={"n_genes": genes})

    @property
    def processes(self) -> int:
        """Processes of a run."""
        return self.devices * self.num_nodes

    @classmethod
    def preset(cls, name: str = "default") -> Config:
        """The named preset: ``quick``, ``default``, ``paper`` or ``paper-small``.

        Parameters
        ----------
        name
            ``quick``, ``default``, ``paper`` or ``paper-small``.

        Returns
        -------
        Config
            The preset.

        Examples
        --------
        >>> import spatialgears as sg
        >>> sg.Config.preset("quick").geometry.crossfit
        1
        """
        for known, changes in PRESETS.items():
            if name == known:
                return cls.from_dict(changes)
        raise ConfigError(
            f"No preset is called {name!r}; there are {', '.join(PRESETS)}.", "Choose one of these."
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Build and validate a configuration; a :class:`ConfigError` names each field that is wrong.

        Keys of earlier versions are accepted if they hold the value that is fixed now, and refused by name otherwise.

        Parameters
        ----------
        values
            Nested, one mapping per stage; missing values are those of the default preset.

        Returns
        -------
        Config
            The configuration.

        Examples
        --------
        >>> import spatialgears as sg
        >>> sg.Config.from_dict({"geometry": {"steps": 200}}).geometry.steps
        200
        """
        try:
            return cls.model_validate(without_removed(values) if isinstance(values, Mapping) else values)
        except ValidationError as error:
            raise _explain(error) from None

    @classmethod
    def from_file(cls, path: str | Path) -> Config:
        """Read a JSON file, which may name a ``preset`` and give only the values that differ from it.

        Parameters
        ----------
        path
            The file; its ``"preset"`` is the start, which the other values change.

        Returns
        -------
        Config
            The configuration.

        Examples
        --------
        >>> import spatialgears as sg
        >>> sg.Config.from_file("mine.json")  # doctest: +SKIP
        """
        path = Path(path)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"There is no configuration file {path}.", "Check the path given to --config."
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path} is not a JSON file: {error}.", "Write one with Config.to_json()."
            ) from None
        if not isinstance(values, dict):
            raise ConfigError(
                f"{path} contains a JSON {type(values).__name__}, expected an object.",
                'Write an object, such as {"seed": 1}.',
            )
        base = cls.preset(values.pop("preset", "default"))
        return cls.from_dict(_merge(base.model_dump(), values))

    def with_values(self, assignments: str | Iterable[str] | Mapping[str, Any]) -> Config:
        """A copy with ``stage.key=value`` assignments, or a mapping, applied and validated.

        Parameters
        ----------
        assignments
            One text such as ``"geometry.steps=200"`` or several, or a mapping, nested or with keys such as
            ``"geometry.steps"``.

        Returns
        -------
        Config
            The changed copy.

        Examples
        --------
        >>> import spatialgears as sg
        >>> sg.Config.preset("quick").with_values({"geometry.steps": 200}).geometry.steps
        200
        """
        if isinstance(assignments, Mapping):
            given = list(assignments.items())
        else:
            given = [
                _assignment(one) for one in ([assignments] if isinstance(assignments, str) else assignments)
            ]
        changes: dict[str, Any] = {}
        for key, value in given:
            *parents, leaf = str(key).split(".")
            level = changes
            for parent in parents:
                inner = level.get(parent, {})
                if not isinstance(inner, Mapping):
                    raise ConfigError(
                        f"{key!r} sets a part of a value that was set before.", "Give each key once."
                    )
                level[parent] = dict(inner)
                level = level[parent]
            level.update(_merge(level, {leaf: value}))
        return self.from_dict(_merge(self.model_dump(), changes))

    def to_json(self) -> str:
        """The configuration as JSON text; :meth:`from_file` reads it back to an equal object.

        Returns
        -------
        str
            JSON, indented, with every value.

        Examples
        --------
        >>> import json
        >>> import spatialgears as sg
        >>> json.loads(sg.Config.preset("quick").to_json())["seed"]
        0
        """
        return self.model_dump_json(indent=2) + "\n"


def _assignment(text: str) -> tuple[str, Any]:
    """``stage.key=value`` as key and value."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set expects stage.key=value, found {text!r}.", "Example: --set seed=1")
    value = value.strip()
    try:
        return key.strip(), json.loads(value)
    except (ValueError, RecursionError):
        return key.strip(), {"True": True, "False": False}.get(value, value)


def _merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if nested else value
    return merged


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their keys, such as ``geometry.steps``."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


#: Plain words for pydantic's errors, by the first word of their type.
_EXPECTED = {"int": "expected a whole number", "float": "expected a number", "bool": "expected true or false"}


def _explain(error: ValidationError) -> ConfigError:
    lines = []
    for item in error.errors():
        location = item["loc"]
        field = ".".join(str(part) for part in location) or "config"
        if item["type"] == "extra_forbidden":
            known = list(_model_of(location[:-1]).model_fields)
            close = _elsewhere(str(location[-1])) or similar_names(str(location[-1]), known)[:1]
            hint = f"did you mean {' or '.join(close)}?" if close else f"allowed are {', '.join(known)}"
            lines.append(f"{field}: there is no such key; {hint}")
        else:
            message = _EXPECTED.get(item["type"].split("_")[0]) or item["msg"].removeprefix("Value error, ")
            found = "" if isinstance(item["input"], dict | BaseModel) else f", found {item['input']!r}"
            lines.append(f"{field}: {message[0].lower()}{message[1:]}{_allowed(location)}{found}")
    return ConfigError(
        "The configuration cannot be used:\n  - " + "\n  - ".join(lines), "Correct these keys and run again."
    )


def _elsewhere(key: str) -> list[str]:
    """The full keys of this name in other sections, such as ``geometry.steps``."""
    own = [key] * (key in Config.model_fields)
    stages = [stage for stage in Config.model_fields if _model_of((stage,)) is not Config]
    return own + [f"{stage}.{key}" for stage in stages if key in _model_of((stage,)).model_fields]


def _model_of(location: tuple[int | str, ...]) -> type[BaseModel]:
    """The class of the section that a key belongs to."""
    annotation = Config.model_fields[str(location[0])].annotation if location else Config
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else Config


def _allowed(location: tuple[int | str, ...]) -> str:
    """The range of a field in words, such as " (allowed: >= 0 and <= 1)"; empty if it has none."""
    model = _model_of(location[:-1] if len(location) > 1 else ())
    field = model.model_fields.get(str(location[-1])) if location else None
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {getattr(rule, name):,}"
        for rule in (field.metadata if field else [])
        for name, sign in signs.items()
        if getattr(rule, name, None) is not None
    ]
    return f" (allowed: {' and '.join(bounds)})" if bounds else ""
