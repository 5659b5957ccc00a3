"""What is released: wheel and sdist, one version, and files that agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

from spatialgears import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command: str | Path, **options) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The sdist of this tree, and the wheel built from that sdist, as PyPI would have them."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out, cwd=ROOT)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(out / "source", filter="data")
    (source,) = (out / "source").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
    return out


def wheel_of(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


def test_wheel_holds_every_file_of_the_package_and_nothing_else(built):
    package = ROOT / "src" / "spatialgears"
    tracked = run("git", "ls-files", package, cwd=ROOT).split() if (ROOT / ".git").exists() else []
    kept = [Path(path).relative_to("src").as_posix() for path in tracked if (ROOT / path).exists()]
    with zipfile.ZipFile(wheel_of(built)) as archive:
        names = archive.namelist()
        meta = message_from_bytes(
            archive.read(next(name for name in names if name.endswith(".dist-info/METADATA")))
        )
    assert {"spatialgears/py.typed", "spatialgears/bench/peers/tangram/requirements.txt"} <= set(names)
    assert set(kept) <= set(names), sorted(set(kept) - set(names))
    assert all(name.startswith(("spatialgears/", f"spatialgears-{__version__}.dist-info/")) for name in names)
    assert meta["Version"] == __version__
    assert meta["License-Expression"] == "BSD-3-Clause"


def test_sdist_can_be_tested_and_documented(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    wanted = {"LICENSE", "README.md", "CITATION.cff", "requirements.lock", "Makefile", "pyproject.toml"}
    assert wanted | {"tests/test_release.py", "docs/conf.py", "examples/Snakefile"} <= names
    assert not [name for name in names if re.search(r"\.venv|_build|__pycache__|\.h5ad", name)]


def test_wheel_works_in_an_empty_environment(built, tmp_path):
    """Nothing but the wheel is installed; what it depends on is lent by the environment of the tests."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet"),
        wheel_of(built),
    )
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "OMP_NUM_THREADS": "1"
    }
    code = "import spatialgears as sg; print(sg.__version__, sg.__file__, sg.Config.preset('quick').seed)"
    version, file, _ = run(python, "-c", code, cwd=tmp_path, env=clean).split()
    assert version == __version__ and Path(file).is_relative_to(own)
    gears = tmp_path / "env" / "bin" / "gears"
    assert run(gears, "--version", cwd=tmp_path, env=clean).strip() == f"gears {__version__}"
    run(gears, "simulate", "-o", "data", "--cells", "200", "--genes", "60", cwd=tmp_path, env=clean)
    found = run(*(gears, "check", "--st", "data/st_1.h5ad", "--sc", "data/sc.h5ad"), cwd=tmp_path, env=clean)
    assert "A run will take about" in found


@pytest.mark.slow
def test_wheel_brings_all_it_needs(built, tmp_path):
    """Everything is installed anew from the index, under the lock, and a tissue is placed."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(*(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "requirements.lock"), wheel_of(built))
    gears = tmp_path / "env" / "bin" / "gears"
    run(
        *(gears, "demo", "-o", "demo", "--cells", "200", "--set", "geometry.steps=20"),
        *("--set", "geometry.refiner_steps=5", "--set", "expression.max_steps=10"),
        cwd=tmp_path,
    )
    assert (tmp_path / "demo" / "run" / "cells.h5ad").exists()


def test_version_is_in_one_place():
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())
    entry = yaml.safe_load((ROOT / "scverse" / "meta.yaml").read_text())
    assert entry["version"] == __version__  # the list asks for it as it was when the entry was made
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == __version__  # conda's recipes name theirs
    assert re.search(
        rf"^## \[(Unreleased|{re.escape(__version__)})\]", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def test_citation_names_paper_and_software():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["title"] == PROJECT["name"] and citation["license"] == PROJECT["license"]
    paper = citation["preferred-citation"]
    assert paper["doi"] == "10.1145/3770855.3818141" and len(paper["authors"]) == 5
    assert paper["doi"] in (ROOT / "README.md").read_text()


def test_lock_pins_every_dependency_and_names_no_machine():
    lines = [
        line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.]+", line) for line in lines), "names and versions only"
    pinned = {line.split("==")[0].replace(".", "-") for line in lines}
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(one for name in extras for one in extras[name])]
    named = {re.match(r"[A-Za-z0-9_.-]+", one).group().lower().replace("_", "-") for one in wanted}
    assert named - pinned == {"spatialgears"}


def test_recipes_ask_for_what_the_project_does():
    """conda has other names for a few packages, and the same lowest versions."""
    names = {"torch": "pytorch", "igraph": "python-igraph", "matplotlib": "matplotlib-base"}
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    for one in PROJECT["dependencies"]:
        name, least = re.match(r"([\w-]+)(.*)", one).groups()
        assert f"    - {names.get(name, name)} {least}\n" in recipe, f"{one} is missing or differs"
    assert "-c requirements.lock" in (ROOT / "Containerfile").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_templates_are_read_as_meant(path):
    content = yaml.safe_load(path.read_text())
    for job in content.get("jobs", {}).values():
        assert job["runs-on"] and job["steps"]
    if path.parent.name == "ISSUE_TEMPLATE" and path.stem != "config":
        assert content["name"] and content["description"] and content["body"]
