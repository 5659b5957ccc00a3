"""Dependencies point one way, heavy libraries are imported late, and nothing is pickled."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spatialgears

ROOT = Path(spatialgears.__file__).parent

#: A module may import only from rows above its own; modules of one row do not know each other.
LAYERS = [
    ["_version", "text"],
    ["errors"],
    ["config"],
    ["runtime"],
    ["metrics", "validate"],
    ["expression"],
    ["supervision", "io"],
    ["geometry", "datasets"],
    ["assembly"],
    ["storage"],
    ["pipeline"],
    ["check", "reconstruction"],
    ["model"],
    ["analysis"],
    ["plotting"],
    ["report"],
    ["run"],
    ["bench"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}

#: AnnData is touched at the edges only; stages are functions of arrays.
EDGES = {"io", "validate", "check", "datasets", "reconstruction", "model", "analysis", "plotting", "report"}
EDGES |= {"run", "bench", "cli"}

#: What a module must know nothing of, beyond the rows.
FORBIDDEN = {
    "errors": {"torch", "numpy"},
    "config": {"torch", "numpy"},
    "metrics": {"torch", "spatialgears.runtime.engine"},
    "supervision": {"torch.nn.Module", "torch.optim", "spatialgears.expression"},
    "geometry": {"spatialgears.expression"},
    "assembly": {
        "spatialgears.geometry.training",
        "spatialgears.expression",
        "spatialgears.supervision.minisets",
    },
    "datasets": {"spatialgears.expression", "spatialgears.supervision", "torch"},
    "plotting": {"spatialgears.geometry", "spatialgears.supervision"},
    "report": {"spatialgears.geometry", "spatialgears.supervision"},
}
FILES = sorted(ROOT.rglob("*.py"))


def owner(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in the file; ``from a import b`` gives both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_every_module_has_a_place():
    strangers = {owner(path) for path in FILES} - set(RANK) - {"__init__"}
    assert not strangers, f"give {strangers} a row in LAYERS"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    me = owner(path)
    if me == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "spatialgears" and len(parts) > 1 and parts[1] in RANK and parts[1] != me:
            assert RANK[parts[1]] < RANK[me], f"{me} must not import {name}"
        if me not in EDGES:
            assert parts[0] not in ("anndata", "scanpy"), f"{me} is between the edges: arrays only"
        for package in FORBIDDEN.get(me, ()):
            assert not within(name, package), f"{me} must know nothing of {package}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_pickled(path):
    names = set(imports(path))
    assert not {
        name for name in names if name.split(".")[0] in ("pickle", "dill", "joblib", "shelve", "marshal")
    }
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("load", "save")
            and isinstance(node.value, ast.Name)
        ):
            assert node.value.id != "torch", f"{path}:{node.lineno} torch.{node.attr} pickles"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant) and node.value.value is False


@pytest.mark.parametrize(
    "code", ["import spatialgears", "from spatialgears.cli import main; main(['--help'])"]
)
def test_heavy_libraries_are_imported_late(code):
    heavy = ("torch", "scanpy", "anndata", "matplotlib", "pandas", "scipy", "sklearn", "numpy", "pydantic")
    check = f"import atexit, sys\natexit.register(lambda: print([m for m in {heavy} if m in sys.modules]))\n"
    done = subprocess.run([sys.executable, "-c", check + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
