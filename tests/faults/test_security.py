"""Nothing that is read can run code, start a shell, or write outside the output folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

import spatialgears
from spatialgears.errors import RunError
from spatialgears.io import read, write_h5ad
from spatialgears.model import GEARS
from spatialgears.storage.model_folder import load_model, sealed

ROOT = Path(spatialgears.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

#: Calls by their bare name, and by module and name, that run what they are given or unpack it.
BARE = {"eval", "exec", "compile", "__import__", "input"}
DOTTED = {
    "os": {"system", "popen", "execv", "execve", "execl", "execlp", "execvp", "spawnl", "spawnv"},
    "pickle": {"load", "loads", "Unpickler"},
    "torch": {"load", "save"},
    "yaml": {"load", "unsafe_load"},
    "tarfile": {"open", "TarFile"},
    "zipfile": {"ZipFile"},
    "shutil": {"unpack_archive"},
    "tempfile": {"mktemp"},
    "subprocess": {"getoutput", "getstatusoutput"},
}
#: Unpacks an earlier version of our own source, which git gives.
UNPACKERS = {"bench/speed.py"}
#: Modules whose task it is to start processes or code of known places: the benchmark's peers, one trial, and the command
#: itself in several processes.
STARTERS = {"runtime/training.py", "cli/launch.py", "bench/harness.py", "bench/limits.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_is_made_from_data(path):
    place = str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        where, called = f"{place}:{node.lineno}", node.func
        if isinstance(called, ast.Name):
            assert called.id not in BARE, f"{where} calls {called.id}"
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            own = called.value.id == "tarfile" and place in UNPACKERS
            assert own or called.attr not in DOTTED.get(called.value.id, ()), f"{where} calls {called.attr}"
            if called.value.id == "subprocess":
                assert place in STARTERS or place.startswith("bench/"), f"{where} starts a process"
        for keyword in node.keywords:
            on = not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
            assert not (keyword.arg in ("shell", "allow_pickle", "trust_remote_code") and on), where


#: Modules that speak to a network. The processes of a run find each other by a port of this machine.
NETWORK = {"urllib", "http", "ftplib", "smtplib", "requests", "httpx", "aiohttp", "pooch", "socket"}
PORTS = {"cli/launch.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_downloaded(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        found = NETWORK & {name.split(".")[0] for name in names}
        assert not found or str(path.relative_to(ROOT)) in PORTS, f"{path}:{node.lineno} imports {found}"


def test_every_promise_names_its_test():
    root = Path(__file__).parents[2]
    text = (root / "SECURITY.md").read_text(encoding="utf-8")
    promised = text[text.index("## What is promised") : text.index("## What is not promised")]
    bullets = promised.split("\n- ")[1:]
    assert len(bullets) >= 14
    for bullet in bullets:
        assert "::test_" in bullet, f"no test is named for: {bullet}"
    for file, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", promised):
        assert f"def {name}(" in (root / file).read_text(encoding="utf-8"), f"there is no {file}::{name}"


def test_a_model_cannot_name_files_elsewhere(small_model, tmp_path):
    """Digests are taken of the model's own files, whatever names its facts hold."""
    import json

    small_model.save(tmp_path / "model")
    (tmp_path / "secret").write_text("mine")
    path = tmp_path / "model" / "meta.json"
    meta = json.loads(path.read_text())
    del meta["digest"]
    meta["files"] |= {"../secret": "0"}
    path.write_text(sealed(json.dumps(meta, indent=1)) + "\n")
    assert load_model(tmp_path / "model").config == small_model.config
    meta["files"] = {"../secret": "0"}
    path.write_text(sealed(json.dumps(meta, indent=1)) + "\n")
    with pytest.raises(RunError, match="is not what was saved"):
        GEARS.load(tmp_path / "model")


def test_a_manifest_cannot_name_files_elsewhere(whole_run, small_files, fault_config, tools, tmp_path):
    import json
    import shutil
    from types import SimpleNamespace

    out = tmp_path / "out"
    shutil.copytree(whole_run, out)
    (tmp_path / "secret").write_text("mine")
    manifest = json.loads((out / "run.json").read_text())
    del manifest["digest"]
    manifest["results"] |= {"../secret": "0"}
    (out / "run.json").write_text(sealed(json.dumps(manifest, indent=1)) + "\n")
    tools[0](str(small_files), str(out), fault_config.to_json(), SimpleNamespace(value=0))
    assert (tmp_path / "secret").read_text() == "mine"


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "a/b", "..", "evil\x00", "<script>"])
def test_names_in_the_data_are_no_paths(name, small_model, small_tissue, tmp_path):
    cells = small_tissue.cells[:40].copy()
    cells.obs_names = [name if i == 0 else f"c{i}" for i in range(40)]
    cells.obs["kind"] = name
    out = tmp_path / "a" / "b" / "out.h5ad"
    try:
        write_h5ad(small_model.reconstruct(cells).to_adata(cells, copy=True), out)
    except spatialgears.errors.InputError:
        assert "\x00" in name  # HDF5 cannot hold it
    else:
        assert read(out).obs_names[0] == name
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert made <= {"a", "a/b", "a/b/out.h5ad"}


def test_an_object_column_of_a_file_is_not_run(small_tissue, tmp_path):
    """anndata keeps objects as strings; a file that holds a pickle as bytes gives bytes back."""
    cells = ad.AnnData(small_tissue.cells.X, obs=small_tissue.cells.obs.copy())
    cells.uns["payload"] = np.frombuffer(b"cos\nsystem\n(S'touch hacked'\ntR.", dtype=np.uint8)
    cells.write_h5ad(tmp_path / "x.h5ad")
    assert bytes(read(tmp_path / "x.h5ad").uns["payload"]).startswith(b"cos")
    assert not Path("hacked").exists()
