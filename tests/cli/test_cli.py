from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import spatialgears
from spatialgears import text as words
from spatialgears.cli import app as app_module
from spatialgears.cli import main, options, output
from spatialgears.cli.options import load_config
from spatialgears.errors import InputError, TrainingError
from spatialgears.runtime.progress import ProgressView


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two slides and cells, and the truth with cells in another order."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name, n in (("st_1", 60), ("st_2", 50), ("sc", 80)):
        xy = rng.uniform(0, 10, (n, 2))
        counts = rng.poisson(np.exp(0.2 * xy[:, :1] * rng.normal(size=(1, 120))), (n, 120)).astype(np.float32)
        adata = ad.AnnData(sparse.csr_matrix(counts))
        adata.obs_names, adata.var_names = [f"{name}_{i}" for i in range(n)], [f"G{i}" for i in range(120)]
        if name == "sc":
            adata.obsm["X_gears"] = 3 * xy @ np.array([[0, 1], [-1, 0]]) + 7
            truth = ad.AnnData(obs=pd.DataFrame(index=adata.obs_names), obsm={"spatial": xy})
            truth[::-1].copy().write_h5ad(folder / "truth.h5ad")
        else:
            adata.obsm["spatial"] = xy
        adata.write_h5ad(folder / f"{name}.h5ad")
    return folder


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def inputs(folder: Path) -> list[str]:
    return ["--st", f"{folder}/st_1.h5ad", "--st", f"{folder}/st_2.h5ad", "--sc", f"{folder}/sc.h5ad"]


def test_version_and_help(capsys):
    assert run(capsys, "--version")[:2] == (0, f"gears {spatialgears.__version__}\n")
    code, out, _ = run(capsys, "--help")
    assert code == 0 and all(name in out for name in ("simulate", "check", "evaluate"))
    assert run(capsys, "check", "-h")[0] == 0


def test_a_notebooks_backend_is_not_taken_over(capsys, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://not_installed_here")
    assert run(capsys, "--version")[0] == 0 and os.environ["MPLBACKEND"] == "Agg"


def test_check_in_plain_lines(capsys, folder):
    code, out, err = run(capsys, "check", *inputs(folder))
    assert code == 0 and err == ""
    assert "st_1.h5ad\tspots\t60\t120" in out and "sc.h5ad\tcells\t80\t120" in out
    assert "A run will take about" in out
    assert "\x1b" not in out  # no colours in a pipe


def test_check_as_json(capsys, folder):
    code, out, _ = run(capsys, "check", *inputs(folder), "--json", "--set", "expression.n_genes=50")
    report = json.loads(out)
    assert code == 0
    assert report["shared_genes"] == 120 and report["panel_genes"] == 50
    assert [one["observations"] for one in report["slides"]] == [60, 50]
    assert report["cost"]["seconds"] > 0
    assert not report["donors"]["stated"]


def test_check_says_whose_the_slides_are(capsys, folder):
    assert "each slide is taken as a donor of its own" in run(capsys, "check", *inputs(folder))[1]
    out = run(capsys, "check", *inputs(folder), "--donor", "Ann", "--donor", "Bob")[1]
    assert "2 donors (Ann, Bob)" in out


@pytest.mark.parametrize("genes_in_rows", [False, True])
def test_a_table_of_cells_finds_its_orientation(capsys, folder, tmp_path, genes_in_rows):
    frame = ad.read_h5ad(folder / "sc.h5ad").to_df()
    (frame.T if genes_in_rows else frame).to_csv(tmp_path / "sc.csv")
    code, out, err = run(capsys, "check", "--st", folder / "st_1.h5ad", "--sc", tmp_path / "sc.csv", "--json")
    assert code == 0 and json.loads(out)["cells"]["observations"] == 80
    assert ("it was turned" in err) == genes_in_rows


def test_bad_input_is_told_on_standard_error(capsys, folder):
    code, out, err = run(capsys, "check", "--st", folder / "sc.h5ad")
    assert (code, out) == (2, "")
    assert "sc.h5ad: expected coordinates" in err and "What to do" in err and "Traceback" not in err
    code, out, err = run(capsys, "check", "--st", folder / "sc.h5ad", "--json")
    assert code == 2 and "expected coordinates" in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "--st"),
        (["bogus"], "bogus"),
        (["check", "--st", "a.h5ad", "b.h5ad"], "b.h5ad belongs to no option. Repeat an option"),
        (["check", "--st", "none.h5ad"], "no file or folder none.h5ad"),
        (["check", "--st", "{st}", "--preset", "fast"], "quick, default, paper"),
        (["check", "--st", "{st}", "--set", "geometry.stesp=3"], "geometry.stesp"),
        (["check", "--st", "{st}", "--config", "none.json"], "no configuration file"),
        (["check", "--st", "{st}", "--layer", "counts"], "no layer 'counts'"),
        (["check", "--st", "{st}", "--st-genes", "ids"], "no column 'ids'"),
        (["check", "--st", "{st}", "--coordinates", "x,y"], "two columns of .obs"),
        (["check", "--st", "{st}", "--donor", "a", "--donor", "b"], "donor for each of 1 slide"),
        (
            ["run", "--st", "{st}", "--sc", "{st}", "-o", "o", "--cells-from", "me"],
            "same-donor or other-donor, found me",
        ),
        (["check", "--st", "{st}", "--coordinates", "a", "--coordinates", "b"], "once per slide (1 times)"),
        (["simulate", "-o", "x", "--cells", "-3"], "--cells"),
    ],
)
def test_usage_errors_leave_with_two(capsys, folder, arguments, words):
    code, out, err = run(capsys, *(one.format(st=folder / "st_1.h5ad") for one in arguments))
    assert code == 2 and out == ""
    assert words in err and "Traceback" not in err


@pytest.mark.parametrize("arguments", [["--debug", "check"], ["check", "--debug"]])
def test_debug_shows_where(arguments):
    with pytest.raises(InputError, match="no file"):
        main([*arguments, "--st", "none.h5ad"])


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("bad", "mend it"), 2, "Error: bad\n  What to do: mend it"),
        (TrainingError("lost"), 1, "Error: lost"),
        (ZeroDivisionError("oops"), 1, "unexpected ZeroDivisionError: oops"),
    ],
)
def test_exit_codes(capsys, monkeypatch, error, code, words):
    def fail(**_):
        raise error

    monkeypatch.setattr(app_module, "app", fail)
    found, _, err = run(capsys, "check")
    assert found == code and words in err and "Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interrupt_leaves_with_130():
    code = """
import signal, time
from spatialgears.cli import main, options

def load_config(*_):
    print("ready", flush=True)
    time.sleep(100)

options.load_config = load_config
signal.signal(signal.SIGINT, signal.default_int_handler)
main(["check", "--st", "a.h5ad"])
"""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_run_ended_by_a_cluster_says_how_to_go_on():
    code = """
import time
from pathlib import Path
from spatialgears.cli.run import _followed

with _followed(Path("here")):
    print("ready", flush=True)
    time.sleep(100)
"""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143 and "again to resume in here" in err and "Traceback" not in err


def test_evaluate_matches_cells_by_name(capsys, folder):
    code, out, _ = run(
        capsys, "evaluate", "--pred", folder / "sc.h5ad", "--truth", folder / "truth.h5ad", "--json"
    )
    row = json.loads(out)
    assert code == 0
    assert row["spearman"] == pytest.approx(1) and row["stress1"] == pytest.approx(0, abs=1e-6)
    assert row["lrmse_100"] is None  # too few points: null, not NaN
    code, out, _ = run(capsys, "evaluate", "--pred", folder / "sc.h5ad", "--truth", folder / "truth.h5ad")
    assert code == 0
    first, _, columns, spearman, *others = out.splitlines()
    assert first == "80 cells; all of them were scored. ↑ higher is better, ↓ lower is better."
    assert spearman == "spearman\t1\t↑\tAre near pairs near and far pairs far?"
    assert others[8].startswith("w1_knn\t") and others[9:11] == ["More", columns]
    assert not any(line.endswith("\t") for line in others)
    named = {line.split("\t")[0] for line in [spearman, *others]} - {"More", "metric"}
    assert named == set(row) - {"n", "sampled"}


def test_evaluate_reads_tables(capsys, folder, tmp_path):
    import anndata as ad
    import pandas as pd

    sc, truth = folder / "sc.h5ad", folder / "truth.h5ad"
    _, out, _ = run(capsys, "evaluate", "--pred", sc, "--truth", truth, "--json")
    cells = ad.read_h5ad(sc)
    names = [f"'{name}" if name.startswith("=") else name for name in cells.obs_names]
    frame = pd.DataFrame(cells.obsm["X_gears"], names, ["x", "y"]).assign(radius50=0.1, domain="0")
    frame.rename_axis("cell").to_csv(tmp_path / "places.csv")
    code, again, _ = run(capsys, "evaluate", "--pred", tmp_path / "places.csv", "--truth", truth, "--json")
    assert code == 0 and json.loads(again) == pytest.approx(json.loads(out), abs=1e-6)


def test_evaluate_refuses_what_does_not_match(capsys, folder, tmp_path):
    code, _, err = run(capsys, "evaluate", "--pred", folder / "sc.h5ad", "--truth", folder / "st_1.h5ad")
    assert code == 2 and "80 of 80 predicted cells are missing, e.g. sc_0; it has st_1_0" in err
    code, _, err = run(
        capsys, "evaluate", "--pred", folder / "sc.h5ad", "--truth", folder / "truth.h5ad", "--key", "X_pca"
    )
    assert code == 2 and "has 'X_gears'" in err and "Name one of these with --key." in err
    bare = ad.read_h5ad(folder / "sc.h5ad")
    del bare.obsm["X_gears"]
    bare.write_h5ad(tmp_path / "bare.h5ad")
    code, _, err = run(capsys, "evaluate", "--pred", tmp_path / "bare.h5ad", "--truth", folder / "truth.h5ad")
    assert code == 2 and ".obsm has nothing" in err and "gears reconstruct wrote" in err


def test_simulate_writes_files_that_check_reads(capsys, tmp_path):
    command = ["simulate", "-o", tmp_path / "a", "--cells", 150, "--sections", 2, "--genes", 60, "--seed", 3]
    code, out, _ = run(capsys, *command)
    assert code == 0 and "gears check" in out
    names = ["st_1.h5ad", "st_2.h5ad", "sc.h5ad", "truth.h5ad"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(names)
    cells, truth = (ad.read_h5ad(tmp_path / "a" / name) for name in ("sc.h5ad", "truth.h5ad"))
    assert cells.n_obs == 150 and "spatial" not in cells.obsm
    assert list(truth.obs_names) == list(cells.obs_names) and truth.obsm["spatial"].shape == (150, 2)
    assert run(capsys, "check", *inputs(tmp_path / "a"))[0] == 0
    command[2] = tmp_path / "b"
    files = json.loads(run(capsys, *command, "--json")[1])["files"]
    assert [Path(one["path"]).name for one in files] == names
    again = ad.read_h5ad(tmp_path / "b" / "sc.h5ad")
    assert (again.X != cells.X).nnz == 0


def test_configuration_options(tmp_path):
    (tmp_path / "c.json").write_text('{"preset": "quick", "seed": 3}')
    config = load_config(None, tmp_path / "c.json", ["seed=4"])
    assert config == load_config("quick", None, ["seed=4"])
    assert load_config(None, None, None) == spatialgears.Config()
    with pytest.raises(InputError, match="found both"):
        load_config("quick", tmp_path / "c.json", None)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_in_plain_lines_now_and_then(monkeypatch):
    err, clock = io.StringIO(), iter(range(0, 1000, 3))
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with ProgressView(every=10) as progress:
        for step in range(1, 11):
            progress("geometry", step, 10, {"loss": 0.5})
    told = err.getvalue().splitlines()
    assert told == [
        "geometry: 5/10, 15 s left, loss 0.5",
        "geometry: 9/10, 3 s left, loss 0.5",
        "geometry: 10/10, 27 s, loss 0.5",
    ]


def test_the_time_left_after_going_on_counts_the_steps_done_since(monkeypatch):
    err, clock = io.StringIO(), iter(range(0, 1000, 5))
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with ProgressView(every=10) as progress:
        for step in (81, 82, 83):
            progress("geometry", step, 100, {})
    assert err.getvalue() == "geometry: 83/100, 85 s left\n"


def test_lines_stand_above_the_bars(monkeypatch):
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressView() as progress:
        progress.tell("Going on in [out]")
        progress("geometry", 1, 2, {})
    assert "Going on in [out]" in err.getvalue()


def test_progress_in_bars_on_a_terminal(monkeypatch):
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressView() as progress:
        progress("geometry", 1, 2, {"loss": 0.5})
        progress("geometry", 2, 2, {"loss": 0.25})
        progress("assembly", 1, 4, {})
    assert all(words in err.getvalue() for words in ("geometry", "2/2", "loss 0.25", "assembly", "1/4"))


def test_tables_on_a_terminal_and_in_a_pipe(monkeypatch, capsys):
    output.table("Title", ["name", "n"], [["a[b]", 12345], ["c", None]])
    assert capsys.readouterr().out == "Title\nname\tn\na[b]\t12,345\nc\t-\n"
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    output.table("Title", ["name", "n"], [["a[b]", 12345]])
    assert "a[b]" in screen.getvalue() and "12,345" in screen.getvalue() and "│" in screen.getvalue()


def test_words_for_time_and_size():
    assert [words.duration(value) for value in (5, 300, 7200)] == ["5 s", "5 min", "2.0 h"]
    assert [words.size(value) for value in (5e7, 2.5e9)] == ["50 MB", "2.5 GB"]
    assert [words.number(value, "slide") for value in (0, 1, 2000)] == ["0 slides", "1 slide", "2,000 slides"]
    names = ["Pcp4", "Pcp2", "Mbp"]
    assert words.similar_names("PCP4", names) == ["Pcp4"] and words.similar_names("Pcp", names) == [
        "Pcp4",
        "Pcp2",
    ]
    assert words.similar_names("xyz", names) == []


def test_one_slide_of_two_may_have_places_of_its_own(small_tissue, tmp_path):
    own, bare = small_tissue.slides[0], small_tissue.slides[1].copy()
    table = pd.DataFrame(bare.obsm.pop("spatial"), index=bare.obs_names, columns=["x", "y"])
    for name, adata in (("own", own), ("bare", bare)):
        adata.write_h5ad(tmp_path / f"{name}.h5ad")
    table.to_csv(tmp_path / "xy.csv")
    st = [str(tmp_path / f"{name}.h5ad") for name in ("own", "bare")]
    found = options.read_inputs(st, None, options.Reading(coordinates=["-", str(tmp_path / "xy.csv")])).slides
    np.testing.assert_allclose(found[0].obsm["spatial"], own.obsm["spatial"])
    np.testing.assert_allclose(found[1].obsm["spatial"], table)
