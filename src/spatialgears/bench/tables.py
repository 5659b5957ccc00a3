"""Rows as Markdown tables: mean and spread over seeds, the best in bold, with time and memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spatialgears.bench.methods import REFERENCES
from spatialgears.bench.peers import PEERS
from spatialgears.bench.store import Row

#: The ten metrics of the paper's Table 1.
TABLE1 = ("spearman", "pearson", "stress1", "edge_auc", "bap", "shell_f1", "trust", "cont", "swd", "w1_knn")
DEPTH = ("depth_axis", "depth_distance", "depth_knn")
COVERAGE = ("cover50", "cover90", "cover95", "least_sure")
#: Heading of each metric, and whether higher is better (None: it should equal its nominal value).
METRICS: dict[str, tuple[str, bool | None]] = {
    "spearman": ("Spearman ↑", True),
    "pearson": ("Pearson ↑", True),
    "stress1": ("Stress-1 ↓", False),
    "edge_auc": ("Edge AUC ↑", True),
    "bap": ("bAP ↑", True),
    "shell_f1": ("Shell F1 ↑", True),
    "trust": ("Trust@20 ↑", True),
    "cont": ("Cont@20 ↑", True),
    "swd": ("SWD ↓", False),
    "w1_knn": ("W1 kNN ↓", False),
    "cal_error": ("CalErr ↓", False),
    "lrmse_10": ("LRMSE@10 ↓", False),
    "lrmse_20": ("LRMSE@20 ↓", False),
    "lrmse_50": ("LRMSE@50 ↓", False),
    "lrmse_100": ("LRMSE@100 ↓", False),
    "depth_axis": ("Depth, axis ↑", True),
    "depth_distance": ("Depth, distance ↑", True),
    "depth_knn": ("Depth, kNN ↑", True),
    "cover50": ("within 50% radius", None),
    "cover90": ("within 90% radius", None),
    "cover95": ("within 95% region", None),
    "least_sure": ("error of the 10% most uncertain cells / mean error", None),
}
NONE = "–"
_KINDS = ("ours", "other", "reference", "peer")


def tables(rows: Iterable[Row], *, columns: Sequence[str] | None = None) -> str:
    """One Markdown table per task, under a heading."""
    parts = [
        f"### {protocol}: {task}\n\n{table(group, columns=columns)}"
        for (protocol, task), group in _by_task(rows).items()
    ]
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row], *, columns: Sequence[str] | None = None) -> str:
    """The methods of one task, one line each; by default with the columns of Table 1, depth and coverage that there are."""
    present = {name for row in rows for name in row["metrics"]}
    columns = [name for name in columns or (*TABLE1, *DEPTH, *COVERAGE) if name in present]
    methods = _by_method(rows)
    best = {name: _best(name, methods) for name in columns}
    titles = ["method", *(METRICS[name][0] for name in columns), "time", "memory", "seeds", "note"]
    lines = []
    for method, group in methods.items():
        done = [row for row in group if row["status"] == "ok"]
        seconds = [row["seconds"] for row in group if row["seconds"] is not None]
        memory = [row["peak_gb"] for row in group if row["peak_gb"] is not None]
        cells = [_cell(name, done, bold=method in best[name]) for name in columns]
        time = f"{np.mean(seconds):.0f} s" if seconds else NONE
        space = f"{max(memory):.1f} GB" if memory else NONE
        lines.append([method, *cells, time, space, seeds_of(done), _note(group)])
    return _markdown(titles, lines)


def seeds_of(done: Sequence[Row]) -> str:
    """How many seeds a method ran with; ``"deterministic"`` if a seed changes neither it nor its data."""
    fixed = {peer.title for peer in PEERS.values() if not peer.seeded}
    fixed |= {reference.name for reference in REFERENCES.values() if not reference.seeded}
    if done and all(row["method"] in fixed and not row["task"].startswith("simulated") for row in done):
        return "deterministic"
    return f"{len({row['seed'] for row in done})}"


def standing(rows: Iterable[Row], *, method: str = "GEARS default") -> str:
    """Where a method stands: one line per task, beside the best reference and the best peer by Spearman.

    It is best on a metric if its mean is better than that of every reference and peer. The last column counts the
    metrics on which every margin exceeds the spread over seeds, both its own and the other method's. Where each seed is
    another tissue, this is the spread of the difference. A single seed has no spread.
    """
    titles = ["task", method, "best reference", "best peer"]
    titles += ["best on, of 10 metrics", "by more than the spread over seeds"]
    lines = []
    for task, (ours, references, peers) in _rivals(rows, method):
        margins = [_margins(name, ours, [*references, *peers]) for name in TABLE1]
        clearly = sum(all(margin > spread for margin, spread in by_rival) for by_rival in margins)
        first = sum(all(margin > 0 for margin, _ in by_rival) for by_rival in margins)
        score = _cell("spearman", ours, bold=False)
        leaders = [_leader(references), _leader(peers)]
        lines.append([task, score, *leaders, first, clearly if len(ours) > 1 else "one seed"])
    return _markdown(titles, lines)


def behind(rows: Iterable[Row], *, method: str = "GEARS default") -> str:
    """Where a method is not first: one line per task and metric, with everyone who is ahead of it, best first."""
    lines = []
    for task, (ours, references, peers) in _rivals(rows, method):
        others = [*references, *peers]
        for metric in TABLE1:
            margins = [margin for margin, _ in _margins(metric, ours, others)]
            gains = dict(zip(summary(others, metric), margins, strict=True))
            ahead = sorted((name for name in gains if gains[name] <= 0), key=gains.__getitem__)
            shown = [
                f"{name} {_cell(metric, [row for row in others if row['method'] == name], bold=False)}"
                for name in ahead
            ]
            if ahead:
                lines.append([task, METRICS[metric][0], _cell(metric, ours, bold=False), ", ".join(shown)])
    return _markdown(["task", "metric", method, "ahead of it"], lines)


def _rivals(rows: Iterable[Row], method: str) -> Iterator[tuple[str, list[list[Row]]]]:
    """Each task that the method and others have a Spearman on: the method's rows, the references', the peers'.

    Rows that were given true positions are left out.
    """
    for (_, task), group in _by_task(rows).items():
        fair = [row for row in group if "spearman" in row["metrics"] and not row["sees_truth"]]
        ours = [row for row in fair if row["method"] == method]
        references, peers = ([row for row in fair if row["kind"] == kind] for kind in ("reference", "peer"))
        if ours and (references or peers):
            yield task, [ours, references, peers]


def _margins(metric: str, ours: Sequence[Row], others: Sequence[Row]) -> list[tuple[float, float]]:
    """The margin over each of the others, and the spread to compare it with.

    The spread is the larger of the two methods' spreads over seeds. Where each seed is another tissue, methods are
    compared tissue by tissue, and it is the spread of the difference.
    """
    sign = 1 if METRICS[metric][1] else -1
    ((mean, spread),) = summary(ours, metric).values()
    by_tissue = {row["seed"]: row["metrics"][metric] for row in ours if row["protocol"] == "simulated"}
    found = []
    for name, (other, theirs) in summary(others, metric).items():
        same = [row for row in others if row["method"] == name and row["seed"] in by_tissue]
        gains = [sign * (by_tissue[row["seed"]] - row["metrics"][metric]) for row in same]
        found.append(_mean_and_spread(gains) if gains else (sign * (mean - other), max(spread, theirs)))
    return found


def _leader(rows: Sequence[Row]) -> str:
    """The method with the highest Spearman, and its score."""
    found = summary(rows, "spearman")
    if not found:
        return NONE
    name = max(found, key=lambda method: found[method][0])
    return f"{name} {_cell('spearman', [row for row in rows if row['method'] == name], bold=False)}"


def plain_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Any rows as Markdown, with the columns of the first row."""

    def shown(value: Any) -> str:
        return NONE if value is None else f"{value:.4g}" if isinstance(value, float) else f"{value}"

    return _markdown(list(rows[0]), [[shown(row.get(name)) for name in rows[0]] for row in rows])


def mean_and_spread(values: Sequence[float], *, digits: int = 3, bold: bool = False) -> str:
    """Mean ± standard deviation; the mean alone of a single value."""
    if not values:
        return NONE
    text = f"**{np.mean(values):.{digits}f}**" if bold else f"{np.mean(values):.{digits}f}"
    return f"{text} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else text


def _markdown(titles: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    head = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join([*head, *("| " + " | ".join(map(str, cells)) + " |" for cells in lines)])


def _by_task(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by protocol and task, in the order of the rows."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["protocol"], row["task"]), []).append(row)
    return groups


def summary(rows: Sequence[Row], metric: str) -> dict[str, tuple[float, float]]:
    """Mean and spread (standard deviation over seeds) of a metric for each method that has it."""
    result = {}
    for method, group in _by_method(rows).items():
        values = [row["metrics"][metric] for row in group if metric in row["metrics"]]
        if values:
            result[method] = _mean_and_spread(values)
    return result


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; the latter is 0 for a single value."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by method: ours first, then references, then peers."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: _KINDS.index(row["kind"])):
        groups.setdefault(row["method"], []).append(row)
    return groups


def _best(metric: str, methods: dict[str, list[Row]]) -> set[str]:
    """The methods with the best mean, without those that were given the truth: they are ceilings."""
    more = METRICS[metric][1]
    fair = [row for group in methods.values() for row in group if not row["sees_truth"]]
    means = {method: round(mean, 6) for method, (mean, _) in summary(fair, metric).items()}
    if more is None or len(means) < 2:
        return set()
    target = max(means.values()) if more else min(means.values())
    return {method for method, mean in means.items() if mean == target}


def _cell(metric: str, rows: Sequence[Row], *, bold: bool) -> str:
    values = [row["metrics"][metric] for row in rows if metric in row["metrics"]]
    return mean_and_spread(values, digits=4 if metric == "w1_knn" else 3, bold=bold)


def _note(group: Sequence[Row]) -> str:
    """The note of a table line: about the method, the cell types that it used, and failures."""
    notes = [group[0]["note"]]
    types = {row["info"].get("types", "") for row in group}
    failed = [row for row in group if row["status"] != "ok"]
    if failed:
        share = "" if len(failed) == len(group) else f"{len(failed)} of {len(group)} "
        status = failed[0]["status"].replace("unavailable", "not run")
        notes.append(f"{share}{status}: {failed[0]['reason']}")
    return "; ".join(note.replace("|", "/").replace("\n", " ") for note in [*notes, *sorted(types)] if note)
