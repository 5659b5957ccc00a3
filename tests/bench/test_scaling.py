"""The table of sizes: what it measures is what a process of its own used, and slopes are slopes."""

from __future__ import annotations

import numpy as np
import pytest

from spatialgears.bench import scaling


def test_slopes_of_linear_and_square_growth():
    rows = [{"cells": n, "seconds": 3.0 * n, "peak GB": 1e-9 * n**2} for n in (10, 100, 1000)]
    assert scaling.slopes(rows) == {"seconds": pytest.approx(1.0), "peak GB": pytest.approx(2.0)}
    spots = [{"spots": row.pop("cells"), **row} for row in rows]
    assert scaling.slopes(spots, by="spots", of=("peak GB",)) == {"peak GB": pytest.approx(2.0)}


def test_a_row_is_read_placed_and_written_by_another_process(
    small_model, small_files, small_tissue, tmp_path
):
    small_model.save(tmp_path / "model")
    spec = {
        "model": str(tmp_path / "model"),
        "cells": str(small_files / "sc.h5ad"),
        "out": str(tmp_path / "placed.h5ad"),
    }
    used = scaling.measured(spec, threads=1)
    assert used["code"] == 0 and 0.2 < used["peak_gb"] < 4 and used["mode"] == "one-shot"
    assert 0 < sum(used["profile"].values()) < used["seconds"]
    assert (tmp_path / "placed.h5ad").exists()
    placed = np.load(tmp_path / "placed.h5ad.npy")
    np.testing.assert_array_equal(placed, small_model.reconstruct(small_tissue.cells).coords)


def test_patterned_spots_are_spatial_and_counted():
    slide = scaling.patterned(500, seed=0)
    assert slide.shape == (500, 100) and slide.X.max() >= 5 and (slide.X.data == np.round(slide.X.data)).all()
    assert (slide.var_names == scaling.patterned(20, seed=1).var_names).all()


def test_the_figure_shows_time_memory_and_accuracy_of_everyone():
    ours = [{"cells": n, "seconds": n, "peak GB": 1.0, "spearman": 0.9} for n in (10, 100)]
    peer = {"cells": 10, "method": "Peer", "seconds": 5, "peak GB": 2.0, "spearman": 0.8, "note": ""}
    failed = {**peer, "method": "Other", "spearman": None}
    axes = scaling.draw(ours, [peer, failed]).axes
    assert [ax.get_ylabel() for ax in axes] == ["seconds", "peak memory, GB", "Spearman"]
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["GEARS", "Peer"]
    assert axes[2].get_ylim() == (0, 1)
