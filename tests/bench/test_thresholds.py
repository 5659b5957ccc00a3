from __future__ import annotations

from spatialgears.bench import thresholds
from spatialgears.bench.request import Request
from spatialgears.pipeline.noise import ABOVE
from spatialgears.validate.sections import STRIP


def test_true_data_lies_beyond_the_thresholds_and_noise_below(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(Request, "config", lambda self, preset: small_config)
    (row,) = thresholds.run(Request(out=tmp_path, simulated=True), print).found
    assert row["above shuffled, noise"] < ABOVE < row["above shuffled, cells"]
    assert row["widest strip"] < STRIP and row["overlaid"] == 0 and row["overlaid, two"] == 1
    assert 0 <= row["unmatched, cells"] < row["unmatched, noise"] <= 1
