from __future__ import annotations

from spatialgears.bench import analyses


def test_every_analysis_is_timed():
    rows = list(analyses.rows(400))
    assert len(rows) == 6 and all(row["seconds"] > 0 and row["cells"] == 400 for row in rows)
    assert analyses.draw(rows).axes[0].get_xlabel() == "seconds, 400 cells"
