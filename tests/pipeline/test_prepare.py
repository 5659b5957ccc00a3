from __future__ import annotations

import numpy as np
import pytest
from anndata import AnnData
from scipy import sparse

from spatialgears.check import check_inputs
from spatialgears.errors import InputError
from spatialgears.model import GEARS
from spatialgears.pipeline.prepare import prepare
from spatialgears.supervision.folds import Folds, models_left_out
from spatialgears.validate import validate_inputs


def whole_transcriptome(n_spots: int, n_cells: int, n_genes: int = 1200) -> tuple[AnnData, AnnData]:
    rng = np.random.default_rng(0)
    slide, cells = (
        AnnData(sparse.csr_matrix(rng.poisson(3, (n, n_genes)).astype(np.float32)))
        for n in (n_spots, n_cells)
    )
    slide.obsm["spatial"] = rng.uniform(0, 1000, (n_spots, 2))
    return slide, cells


def chosen_by(monkeypatch, slides, cells, config) -> list[int]:
    """How many spots of each slide choose the genes."""

    def seen(slides, coords, cells, **rest):
        assert [one.shape[0] for one in slides] == [len(one) for one in coords]
        raise InputError(" ".join(str(len(one)) for one in coords))

    monkeypatch.setattr("spatialgears.pipeline.prepare.build_panel", seen)
    with pytest.raises(InputError) as error:
        prepare(validate_inputs(slides, cells), config)
    return [int(one) for one in error.value.args[0].split()]


@pytest.mark.parametrize(
    ("genes", "slides", "crossfit", "expected"),
    [
        (1200, 1, 2, [80]),  # two generators miss a tenth of the spots each
        (300, 1, 2, [100]),  # a targeted panel is used as it is
        (1200, 2, 2, [100, 100]),  # noise is not shared between slides
        (1200, 1, 10, [100]),  # none would be left
    ],
)
def test_held_out_spots_do_not_choose_genes_on_one_slide_of_a_whole_transcriptome(
    genes, slides, crossfit, expected, small_config, monkeypatch
):
    slide, cells = whole_transcriptome(100, 60, genes)
    others = [slide] if slides == 1 else [slide, whole_transcriptome(100, 60, genes)[0][::-1].copy()]
    if slides == 2:
        others[1].X = sparse.csr_matrix(np.random.default_rng(9).poisson(3, slide.shape).astype(np.float32))
    config = small_config.with_values([f"geometry.crossfit={crossfit}"])
    assert chosen_by(monkeypatch, others, cells, config) == expected


def test_the_folds_of_a_check_are_those_of_the_fit(small_model, small_tissue, small_config):
    fitted = small_model.fitted_
    again = prepare(validate_inputs(small_tissue.slides, small_tissue.cells), small_config).folds
    np.testing.assert_array_equal(again.part, fitted.folds.part)
    np.testing.assert_array_equal(again.whole, fitted.folds.whole)
    assert (fitted.folds.crossfit, fitted.folds.left_out) == (2, 2)


@pytest.mark.filterwarnings("ignore")
def test_a_check_foresees_the_very_panel(small_config):
    slide, cells = whole_transcriptome(120, 100)
    config = small_config.with_values({"geometry": {"steps": 1, "refiner_steps": 1}})
    found = check_inputs(slide, cells, config=config)
    model = GEARS(config).fit(slide, cells)
    assert found.panel_genes == len(model.panel_)
    by_chance = 3 * np.sqrt(2 / (6 * 120))  # on 120 spots Moran's I exceeds 0.1 without any pattern
    assert (
        found.spatial_genes
        == int((model.panel_.morans_i > by_chance).sum())
        < (model.panel_.morans_i > 0.1).sum()
    )


def test_every_part_is_held_out_of_one_model_and_few_slides_are_left_out():
    folds = Folds.draw([300, 100, 50, 50], crossfit=3, left_out=3, seed=0)
    assert np.bincount(folds.part).tolist() == [50] * 10
    assert folds.held_out.sum() == 150 and folds.left_out == 3
    assert np.bincount(folds.whole).tolist() == [300, 100, 50, 50]
    by_donor = Folds.draw([300, 100, 50, 50], crossfit=3, left_out=2, seed=0, wholes=[0, 1, 0, 1])
    assert np.bincount(by_donor.whole).tolist() == [350, 150] and by_donor.left_out == by_donor.wholes == 2
    np.testing.assert_array_equal(by_donor.part, folds.part)
    assert [models_left_out(wholes) for wholes in (1, 2, 3, 9)] == [0, 2, 3, 3]
    assert Folds.draw([30, 30], crossfit=12, left_out=0, seed=0).part.max() == 11
