"""Memory: as predicted, refused early where it is limited, and given back."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import weakref

import psutil
import pytest

from spatialgears.errors import InputError
from spatialgears.pipeline import cost
from spatialgears.pipeline.cost import Cost, predict_cost, require_memory

RUN = """
import json, sys
from spatialgears.config import Config
from spatialgears.io import read
from spatialgears.pipeline.prepare import prepare
from spatialgears.model import GEARS
from spatialgears.validate import validate_inputs
files, n_cells = sys.argv[1], int(sys.argv[2])
config = Config.from_dict(json.load(open(sys.argv[3])))
slides, cells = [read(f"{files}/st_{i}.h5ad") for i in (1, 2)], read(f"{files}/sc.h5ad")
cells = cells[[i % cells.n_obs for i in range(n_cells)]].copy()
cells.obs_names = [f"c{i}" for i in range(n_cells)]
predicted = prepare(validate_inputs(slides, cells), config).cost(config).peak_bytes
GEARS(config).fit(slides, cells).reconstruct(cells)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))  # getrusage counts the parent before exec
print(json.dumps([predicted, 1024 * int(status["VmHWM"].split()[0])]))
"""


def measure(small_files, config, tmp_path, n_cells: int) -> tuple[int, int]:
    """Predicted and used bytes of a run in a process of its own."""
    (tmp_path / "config.json").write_text(config.to_json())
    arguments = [str(small_files), str(n_cells), str(tmp_path / "config.json")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, *arguments], capture_output=True, text=True, check=True
    )
    predicted, used = json.loads(done.stdout.splitlines()[-1])
    return predicted, used


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_under_what_was_predicted(small_files, small_config, tmp_path):
    predicted, used = measure(small_files, small_config, tmp_path, 150)
    assert 0.5 * predicted < used < predicted


@pytest.mark.slow
@pytest.mark.parametrize("n_cells", [3000, 20_000])
def test_memory_of_larger_runs_stays_under_what_was_predicted(small_files, small_config, tmp_path, n_cells):
    config = small_config.with_values({"geometry": {"width": 128, "inducing": 32, "hidden": 512}})
    predicted, used = measure(small_files, config, tmp_path, n_cells)
    assert used < predicted


@pytest.mark.skipif(sys.platform != "linux", reason="limits on address space are Linux's")
@pytest.mark.parametrize("room", [1.0, 2.5])
def test_a_limit_on_memory_is_told_before_the_work(small_files, tmp_path, room):
    """1 GB: not even the libraries; 2.5 GB: the libraries, but not a large model."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (int(room * 1e9), int(room * 1e9)))

    large = [
        "geometry.width=1024",
        "supervision.n_min=1024",
        "supervision.n_max=1024",
        "geometry.batch_size=64",
    ]
    command = [sys.executable, "-m", "spatialgears.cli", "run", "--sc", small_files / "sc.h5ad"]
    command += ["--st", small_files / "st_1.h5ad", "-o", tmp_path / "out", "--set", "threads=1"]
    command += [part for text in large for part in ("--set", text)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=limit, env=environment, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "ulimit -v" in done.stderr and "What to do: Raise the limit" in done.stderr
    assert "unexpected" not in done.stderr and not (tmp_path / "out" / "model").exists()


def test_more_memory_than_there_is_is_refused(monkeypatch):
    total = psutil.virtual_memory().total
    require_memory(Cost(1.0, int(0.5e9)))
    with pytest.raises(InputError, match=r"takes about .* GB of memory; the machine has"):
        require_memory(Cost(1.0, 2 * total))
    monkeypatch.setattr(cost, "memory_limits", lambda: {"ulimit -v leaves": 1e9})
    with pytest.raises(InputError, match=r"takes about 2.0 GB of memory; ulimit -v leaves 1.0 GB"):
        require_memory(Cost(1.0, int(2e9)))


def test_values_that_are_stored_cost_memory(small_config):
    bare, full = (predict_cost(100, 1000, 50, small_config, stored=n) for n in (0, 10**8))
    assert full.peak_bytes - bare.peak_bytes > 10**9 and full.seconds == bare.seconds


def memory_after(model, cells, count: int) -> int:
    """What is in use after some reconstructions, without what the allocator keeps for later."""
    for _ in range(count):
        model.reconstruct(cells)
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    return psutil.Process().memory_info().rss


def test_reconstructions_do_not_pile_up(small_model, small_tissue):
    before = memory_after(small_model, small_tissue.cells, 3)
    assert memory_after(small_model, small_tissue.cells, 5) < before + 8e6


@pytest.mark.slow
def test_memory_after_fifty_reconstructions_is_that_after_five(small_model, small_tissue):
    before = memory_after(small_model, small_tissue.cells, 5)
    assert memory_after(small_model, small_tissue.cells, 45) < before + 8e6


def test_a_model_keeps_nothing_of_the_cells(small_model, small_tissue):
    cells = small_tissue.cells.copy()
    seen = weakref.ref(cells)
    placed = small_model.reconstruct(cells)
    del cells
    gc.collect()
    assert seen() is None and len(placed.coords) == small_tissue.cells.n_obs
