"""What is public keeps to the conventions of scverse, and to what its documentation says."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from anndata import AnnData

import spatialgears as sg

ROOMS = {
    "sg": "spatialgears",
    "tl": "spatialgears.analysis",
    "pl": "spatialgears.plotting",
    "metrics": "spatialgears.metrics",
    "datasets": "spatialgears.datasets",
    "io": "spatialgears.io",
}
DOCS = Path(__file__).parent.parent / "docs"
#: Results: made by us, never by users, so the order of their fields is no interface.
RESULTS = {"sg.Reconstruction", "tl.MarkerEnrichment", "datasets.Tissue"}


def public() -> dict[str, object]:
    found = {}
    for room, module in ROOMS.items():
        rooms = importlib.import_module(module)
        for name in rooms.__all__:
            value = getattr(rooms, name)
            if callable(value) and not inspect.ismodule(value):
                found[f"{room}.{name}"] = value
    return found


PUBLIC = public()
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
METHODS = {
    f"{name}.{key}": getattr(kind, key)
    for name, kind in CLASSES.items()
    for key, value in vars(kind).items()
    if not key.startswith("_") and isinstance(value, classmethod | staticmethod | type(lambda: 0))
}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if name not in CLASSES} | METHODS


def parameters(function: object) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]


@pytest.mark.parametrize("name", sorted({*FUNCTIONS, *CLASSES} - RESULTS))
def test_at_most_three_positional_arguments(name):
    value = {**FUNCTIONS, **CLASSES}[name]
    positional = [p for p in parameters(value) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    assert len(positional) <= 3, [p.name for p in positional]
    assert all(p.kind is not p.VAR_POSITIONAL for p in parameters(value))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_documented_and_annotated(name):
    function = FUNCTIONS[name]
    text = inspect.getdoc(function) or ""
    sections = [*(["Parameters"] if parameters(function) else []), "Returns", "Examples"]
    assert [one for one in sections if f"{one}\n{'-' * len(one)}" not in text] == []
    block = re.search(r"Parameters\n-+\n(.*?)(?=\n\w+\n-+\n|\Z)", text, re.S)
    named = set(re.findall(r"^\**(\w[\w, *]*)$", block.group(1), re.M)) if block else set()
    named = {one.strip(" *") for line in named for one in line.split(",")}
    given = {p.name for p in parameters(function)}
    assert given == named & given, f"undocumented: {sorted(given - named)}"
    assert not named - given, f"documented, and not there: {sorted(named - given)}"
    assert all(p.annotation is not p.empty for p in parameters(function))
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_classes_have_an_example(name):
    assert "Examples\n--------" in (inspect.getdoc(CLASSES[name]) or "")


@pytest.mark.parametrize("name", sorted(n for n in FUNCTIONS if n.startswith("tl.")))
def test_slots_that_are_written_are_documented(name):
    """A function that may write takes ``copy`` and names its slots; one that does not returns something."""
    function = FUNCTIONS[name]
    text = inspect.getdoc(function) or ""
    if "copy" in {p.name for p in parameters(function)}:
        assert inspect.signature(function).return_annotation == "AnnData | None"
        assert re.search(r"(obs|obsm|obsp|uns|varm|var|layers)\[", text.split("Returns\n")[1])
    else:
        assert "None" not in inspect.signature(function).return_annotation


@pytest.mark.parametrize(
    "module",
    sorted({v.__module__ for n, v in {**FUNCTIONS, **CLASSES}.items() if n in CLASSES or n[:3] != "tl."}),
)
@pytest.mark.filterwarnings("ignore")
def test_examples_give_what_they_say(module):
    """Those of functions of ``tl`` are run by their own tests."""
    import matplotlib.pyplot as plt

    failed = doctest.testmod(importlib.import_module(module)).failed
    plt.close("all")
    assert failed == 0


def frozen(adata: AnnData) -> tuple[object, ...]:
    parts = [adata.X.data.tobytes(), adata.X.indices.tobytes(), adata.obs.to_json(), adata.var.to_json()]
    parts += [(key, np.asarray(value).tobytes()) for key, value in sorted(adata.obsm.items())]
    return (*parts, sorted(adata.uns), sorted(adata.layers), sorted(adata.obsp))


@pytest.mark.filterwarnings("ignore")
def test_nothing_is_changed_without_being_asked(small_result, small_tissue, tmp_path):
    cells = small_result.to_adata(small_tissue.cells, copy=True)
    cells.obs["kind"] = np.where(np.arange(cells.n_obs) % 2, "a", "b")
    slide = small_tissue.slides[0]
    assert "X_gears" not in small_tissue.cells.obsm
    before = frozen(cells), frozen(slide)
    sg.tl.spatial_domains(cells, n_shuffles=0, copy=True)
    sg.tl.neighbors_by_type(cells, "kind", n_permutations=10, n_layouts=1, copy=True)
    sg.tl.spatial_expression(cells, list(cells.var_names[:3]), copy=True)
    placed = sg.tl.register(cells, slide, copy=True)
    sg.tl.mixing(cells, "kind", basis="X_gears")
    sg.tl.marker_enrichment(placed, slide, "a", labels="kind", within=0.5)
    sg.pl.reconstruction(cells, color="kind")
    sg.io.write_h5ad(cells, tmp_path / "cells.h5ad")
    sg.datasets.same_spots(slide, slide)
    assert (frozen(cells), frozen(slide)) == before
    import matplotlib.pyplot as plt

    plt.close("all")


def test_every_public_name_is_in_the_documentation():
    listed = (DOCS / "api" / "index.md").read_text()
    for name in PUBLIC:
        short = name.removeprefix("sg.")
        assert re.search(rf"^   {re.escape(short)}$", listed, re.M) or name == "io.read", f"{name} is missing"


def test_pages_of_the_documentation_are_all_reached():
    text = "\n".join(path.read_text() for path in DOCS.rglob("index.md"))
    for path in [*DOCS.glob("*.md"), *(DOCS / "tutorials").glob("*.md")]:
        assert path.stem == "index" or re.search(rf"^(tutorials/)?{re.escape(path.stem)}$", text, re.M), path


def test_contributing_maps_every_package_and_every_module_of_the_pipeline():
    text = (DOCS.parent / "CONTRIBUTING.md").read_text()
    package = DOCS.parent / "src" / "spatialgears"
    rooms = [path.name for path in package.iterdir() if (path / "__init__.py").exists()]
    modules = [path.name for path in (package / "pipeline").glob("*.py") if path.stem != "__init__"]
    assert [name for name in rooms if f"`{name}/`" not in text] == []
    assert [name for name in modules if f"`{name}`" not in text] == []
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", text)
    assert [name for name in named if not ((package / name).exists() or (DOCS.parent / name).exists())] == []


def test_code_in_the_documentation_exists():
    """The pages show functions by name: a name that is gone would break them."""
    for path in DOCS.glob("*.md"):
        for file, name in re.findall(
            r"literalinclude\} (\S+)\n(?::\w+:.*\n)*?:pyobject: (\w+)", path.read_text()
        ):
            assert re.search(rf"^(def|class) {name}\b", (path.parent / file).read_text(), re.M), (path, name)


def test_help_says_what_to_put_there():
    command = [sys.executable, "-m", "spatialgears.cli"]
    top = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^│ (\w+) +[A-Z]", top.split("Commands")[1], re.M)
    assert len(names) >= 9
    for name in ["", *names]:
        asked = [*command, *([name] if name else []), "--help"]
        text = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert not re.search(r"<(bool|str|list|int|path|float)", text), name
