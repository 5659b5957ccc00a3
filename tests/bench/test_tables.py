from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.text import Text

from spatialgears.bench import overview
from spatialgears.bench.request import Request
from spatialgears.bench.store import Store
from spatialgears.bench.tables import TABLE1, behind, standing, table, tables


def row(
    method,
    *,
    kind="peer",
    status="ok",
    seed=0,
    reason="",
    sees_truth=False,
    task="t",
    protocol="p",
    **metrics,
):
    return {
        "protocol": protocol,
        "task": task,
        "method": method,
        "kind": kind,
        "note": "",
        "seed": seed,
        "status": status,
        "reason": reason,
        "sees_truth": sees_truth,
        "metrics": metrics,
        "seconds": 10.0,
        "peak_gb": 1.5,
        "info": {},
    }


def cells(text: str, method: str) -> dict[str, str]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    (line,) = [line for line in lines if line[0] == method]
    return dict(zip(lines[0], line, strict=True))


def test_the_best_is_bold_whichever_way_the_metric_points():
    text = table([row("a", spearman=0.9, swd=0.2), row("b", spearman=0.8, swd=0.1)])
    assert cells(text, "a")["Spearman ↑"] == "**0.900**" and cells(text, "a")["SWD ↓"] == "0.200"
    assert cells(text, "b")["Spearman ↑"] == "0.800" and cells(text, "b")["SWD ↓"] == "**0.100**"


def test_equal_methods_are_both_bold_and_a_ceiling_never_is():
    rows = [row("a", trust=0.9), row("b", trust=0.9), row("top", trust=1.0, sees_truth=True)]
    text = table(rows)
    assert text.count("**") == 4 and cells(text, "top")["Trust@20 ↑"] == "1.000"


def test_coverage_has_no_best():
    assert "**" not in table([row("a", cover90=0.9), row("b", cover90=0.99)])


def test_mean_and_spread_over_seeds():
    text = table([row("a", spearman=0.8, seed=0), row("a", spearman=0.9, seed=1)])
    assert cells(text, "a")["Spearman ↑"] == "0.850 ± 0.071"
    assert cells(text, "a")["seeds"] == "2" and cells(text, "a")["time"] == "10 s"
    assert cells(text, "a")["memory"] == "1.5 GB"


def test_methods_without_randomness_have_no_number_of_seeds():
    rows = [row("novoSpaRc", spearman=0.8), row("kNN on PCA", spearman=0.8), row("STEM", spearman=0.8)]
    text = table(rows)
    found = [cells(text, one["method"])["seeds"] for one in rows]
    assert found == ["deterministic", "deterministic", "1"]
    tissue = [row("novoSpaRc", spearman=0.8, seed=seed) | {"task": "simulated"} for seed in (0, 1)]
    assert cells(table(tissue), "novoSpaRc")["seeds"] == "2"  # each seed is another tissue
    timeout = [row("novoSpaRc", status="timeout", reason="too slow")]
    assert cells(table(timeout), "novoSpaRc")["seeds"] == "0"


def test_failures_stand_in_the_table_with_their_reason():
    rows = [row("a", spearman=0.8), row("b", status="timeout", reason="did not finish in 60 s | really")]
    found = cells(table(rows), "b")
    assert found["Spearman ↑"] == "–" and found["seeds"] == "0"
    assert found["note"] == "timeout: did not finish in 60 s / really"
    partly = [row("a", spearman=0.8), row("a", seed=1, status="failed", reason="why")]
    assert cells(table(partly), "a")["note"] == "1 of 2 failed: why"


def test_ours_come_first_then_references_then_peers():
    rows = [row("p", trust=1), row("r", kind="reference", trust=1), row("o", kind="ours", trust=1)]
    assert re.findall(r"^\| (\w) ", table(rows), re.MULTILINE) == ["o", "r", "p"]


def test_one_table_per_task():
    text = tables([row("a", task="x", trust=1), row("a", task="y", trust=1)])
    assert text.count("### p: ") == 2 and text.count("| method |") == 2


def test_columns_can_be_chosen():
    text = table([row("a", trust=1, lrmse_10=0.1)], columns=("lrmse_10",))
    assert "LRMSE@10" in text and "Trust" not in text


@pytest.mark.parametrize(("status", "shown"), [("failed", "failed"), ("unavailable", "not run")])
def test_a_table_of_failures_alone(status, shown):
    assert f"{shown}: no" in table([row("a", status=status, reason="no")])


def scores(value: float) -> dict[str, float]:
    """Every metric of Table 1 so that a larger ``value`` is better."""
    return {name: 1 - value if name in ("stress1", "swd", "w1_knn") else value for name in TABLE1}


def test_where_ours_stands_beside_the_best_of_each_kind():
    ours = [
        row("GEARS default", kind="ours", seed=seed, **scores(value)) for seed, value in enumerate((0.8, 0.9))
    ]
    close, far = scores(0.84), scores(0.5)
    rows = [
        *ours,
        row("GEARS default: one sample", kind="ours", **scores(0.99)),
        row("simple", kind="reference", **{**far, "swd": 0.01}),
        row("simpler", kind="reference", **scores(0.4)),
        row("ceiling", kind="reference", sees_truth=True, **scores(1.0)),
        row("peer", **{**far, "trust": close["trust"]}),
        row("failed", status="failed"),
    ]
    found = cells(standing(rows), "t")
    assert found["GEARS default"] == "0.850 ± 0.071"
    assert found["best reference"] == "simple 0.500" and found["best peer"] == "peer 0.500"
    assert found["best on, of 10 metrics"] == "9"  # all but SWD
    assert found["by more than the spread over seeds"] == "8"  # nor Trust, where a peer comes close
    assert cells(standing([ours[0], *rows[3:]]), "t")["by more than the spread over seeds"] == "one seed"


def test_tissues_drawn_by_seed_are_compared_one_by_one():
    def both(protocol: str) -> list[dict]:
        values = [("GEARS default", "ours", 0.05), ("simple", "reference", 0.0)]
        return [
            row(
                name,
                kind=kind,
                seed=seed,
                protocol=protocol,
                **scores(tissue + gain + 0.01 * seed * (gain > 0)),
            )
            for name, kind, gain in values
            for seed, tissue in enumerate((0.2, 0.9))
        ]

    assert cells(standing(both("unpaired")), "t")["by more than the spread over seeds"] == "0"
    assert cells(standing(both("simulated")), "t")["by more than the spread over seeds"] == "10"


def test_clearly_first_is_clearly_before_everyone():
    ours = [row("GEARS default", kind="ours", seed=seed, **scores(0.8)) for seed in (0, 1)]
    close = [row("steady", kind="reference", **scores(0.79))]
    wild = [
        row("wild", kind="reference", seed=seed, **scores(value)) for seed, value in enumerate((0.3, 0.9))
    ]
    assert cells(standing([*ours, *close]), "t")["by more than the spread over seeds"] == "10"
    assert cells(standing([*ours, *close, *wild]), "t")["by more than the spread over seeds"] == "0"


def test_nothing_stands_without_rivals():
    ours = row("GEARS default", kind="ours", **scores(0.9))
    depth = row("GEARS default", kind="ours", depth_axis=0.3), row("a", depth_axis=0.2)
    assert all(len(standing(rows).splitlines()) == 2 for rows in ([ours], depth))


def kept(folder, rows):
    """A folder of rows, as a benchmark leaves it."""
    for i, made in enumerate(rows):
        Store(folder).save({**made, "key": f"row{i}", "started": ""})
    return Request(out=folder)


def texts(figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_one_picture_of_all_methods_on_all_tasks(tmp_path):
    rows = [
        row("GEARS default", kind="ours", seed=0, **scores(0.9)),
        row("GEARS default", kind="ours", seed=1, **scores(0.8)),
        row("GEARS default: one sample", kind="ours", **scores(0.99)),
        row("simple", kind="reference", **scores(0.7)),
        row("ceiling", kind="reference", sees_truth=True, **scores(0.95)),
        row("slow", status="timeout"),
        row("barred", status="unavailable"),
        row("deep", task="layers", depth_axis=0.3),
    ]
    outcome = overview.run(kept(tmp_path, rows), print)
    ax = outcome.figures["overview"].axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["t"]
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[:3] == ["ceiling (sees the truth)", "GEARS default", "simple"]
    assert set(names[3:]) == {"slow", "barred"}
    shown = {text.get_text(): text.get_weight() for text in ax.texts}
    assert shown == {
        "0.95": "normal",
        "0.85\n± 0.07": "bold",
        "0.70": "normal",
        "too\nslow": "normal",
        "not\nrun": "normal",
    }
    assert set(texts(outcome.figures["time"])) == {"GEARS default", "simple", "ceiling", "slow", "barred"}


def test_labels_of_the_second_picture_do_not_overlap(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {
            **row(f"method {i}, tuned", kind="peer", **scores(rng.uniform(0.4, 0.5))),
            "seconds": rng.uniform(10, 60),
        }
        for i in range(20)
    ]
    figure = overview.run(kept(tmp_path, rows), print).figures["time"]
    ax = figure.axes[0]
    boxes = [Text.get_window_extent(text) for text in ax.texts]  # without the line to the point
    assert len(boxes) == 20
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1 for box in boxes)


def test_who_is_ahead_is_listed_by_metric():
    ours = [row("GEARS default", kind="ours", seed=seed, **scores(0.9)) for seed in (0, 1)]
    better = row("even", **{**scores(0.7), "swd": 0.05})
    best = row("evener", kind="reference", **{**scores(0.7), "swd": 0.01})
    ceiling = row("ceiling", kind="reference", sees_truth=True, **scores(0.99))
    (line,) = behind([*ours, better, best, ceiling]).splitlines()[2:]
    assert line == "| t | SWD ↓ | 0.100 ± 0.000 | evener 0.010, even 0.050 |"


def test_no_picture_without_a_spearman(tmp_path):
    assert not overview.run(kept(tmp_path, [row("deep", depth_axis=0.3)]), print).figures
