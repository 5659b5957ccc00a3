from __future__ import annotations

import json

import anndata as ad
import numpy as np
import pytest
from scipy import sparse

from spatialgears.assembly.assemble import cells_in_one_pass
from spatialgears.check import check_inputs
from spatialgears.config import Config
from spatialgears.errors import InputError
from spatialgears.pipeline.cost import Cost, predict_cost

GENES = [f"G{i}" for i in range(40)]


def tissue(n: int, *, depth: float, seed: int, places: bool = True) -> ad.AnnData:
    """Half of the genes follow x, the others follow nothing."""
    rng = np.random.default_rng(seed)
    xy = rng.uniform(-1, 1, (n, 2))
    slopes = np.r_[np.linspace(-0.9, 0.9, 20), np.zeros(20)]  # they cancel: the depth does not follow x
    levels = np.r_[np.linspace(1, 3, 10), np.linspace(3, 1, 10)]
    rates = (1 + slopes * xy[:, :1]) * np.r_[levels, levels]  # (n, 40)
    counts = rng.poisson(depth * rates / 80).astype(np.float32)
    adata = ad.AnnData(sparse.csr_matrix(counts))
    adata.var_names, adata.obs_names = GENES, [f"o{i}" for i in range(n)]
    if places:
        adata.obsm["spatial"] = 100 * xy
    return adata


@pytest.fixture(scope="module")
def slides() -> list[ad.AnnData]:
    return [tissue(150, depth=2000, seed=1), tissue(120, depth=2000, seed=2)]


@pytest.fixture(scope="module")
def cells() -> ad.AnnData:
    return tissue(200, depth=400, seed=3, places=False)


def test_report_counts_what_is_there(slides, cells):
    report = check_inputs(slides, cells[:, :35].copy(), names=["a", "b", "c"])
    assert [(one.name, one.observations, one.genes) for one in report.slides] == [
        ("a", 150, 40),
        ("b", 120, 40),
    ]
    assert report.cells is not None and (report.cells.observations, report.cells.genes) == (200, 35)
    assert report.shared_genes == 35 and 20 <= report.panel_genes < 35  # genes without place have no weight
    assert report.slides[0].depth == pytest.approx(2000 * 35 / 40, rel=0.15)
    assert report.depth_ratio == pytest.approx(5, rel=0.1)
    assert report.agreement is not None and report.agreement > 0.9
    assert 10 <= report.spatial_genes <= 20
    assert report.slides[0].spacing == pytest.approx(0.5 * np.sqrt(200**2 / 150), rel=0.2)  # of random points
    assert report.cells.spacing is None
    json.dumps(report.to_dict(), allow_nan=False)


def test_a_preset_by_its_name_and_a_single_slide(slides, cells):
    named, made = (check_inputs(slides[0], cells, config=one) for one in ("quick", Config.preset("quick")))
    assert named.cost == made.cost != check_inputs([slides[0]], cells).cost
    assert named.to_dict() == check_inputs([slides[0]], cells, config="quick").to_dict()
    with pytest.raises(InputError, match="No preset is called 'fast'"):
        check_inputs(slides, cells, config="fast")


def test_reports_read_well(slides, cells):
    first, genes, donors, cost, *odd = repr(check_inputs(slides, cells)).splitlines()
    assert first == "2 slides with 270 spots, 200 cells: counts"
    assert genes.startswith("40 genes in every input, of which ") and "A run takes about" in cost
    assert donors.startswith("Donors: each slide is taken as a donor of its own")
    assert odd == ["Warnings", "  - Only 40 genes are shared; places will be coarse."]
    alone = repr(check_inputs(slides[0])).splitlines()
    assert alone[0] == "1 slide with 150 spots: counts"
    assert alone[-1].startswith("  - There is one slide:")


def test_the_panel_is_as_large_as_the_configuration_allows(slides, cells):
    assert (
        check_inputs(slides, cells, config=Config().with_values(["expression.n_genes=10"])).panel_genes == 10
    )


def test_nothing_is_odd_in_good_data(slides, cells):
    odd = check_inputs(slides, cells).warnings
    assert [text for text in odd if "Only 40 genes are shared" not in text] == []


def test_what_is_odd_is_said(slides, cells):
    def said(word: str, *args, **kwargs) -> bool:
        return any(word in text for text in check_inputs(*args, **kwargs).warnings)

    assert said(
        "Spots have 0.2 of the depth", [tissue(150, depth=400, seed=1)], tissue(150, depth=2000, seed=2)
    )
    assert said("the cells: 100% of them have exactly the values of spots of slide 1", slides, slides[0])
    assert said("There is one slide", slides[:1], cells) and not said("There is one slide", slides, cells)
    shuffled = slides[0].copy()
    shuffled.obsm["spatial"] = np.random.default_rng(0).permutation(shuffled.obsm["spatial"])
    assert said("Weak spatial signal", [shuffled], cells)
    strange = cells.copy()
    strange.X = sparse.csr_matrix(
        np.random.default_rng(0).poisson(3 * np.random.default_rng(1).gamma(1, 2, 40), (200, 40))
    )
    assert said("hardly agrees", slides, strange)


def test_a_missing_figure_is_explained(slides, cells):
    noise = cells[:30].copy()
    noise.X = sparse.csr_matrix(np.random.default_rng(1).poisson(1.0, noise.shape).astype(np.float32))
    alone, few = check_inputs(slides), check_inputs(slides, noise)
    assert set(alone.unknown.values()) == {"no cells"} and len(alone.unknown) == 3
    assert few.coexpression is None
    assert few.unknown == {"coexpression": "noise in the cells: few of them, or shallow"}
    assert check_inputs(slides, cells).unknown == {}


def test_what_a_run_will_warn_of_is_said_before_it(small_tissue, small_config):
    """Counts moved between spots: a signal that is weak; and no slide, or no spot, is held out."""
    from spatialgears.model import GEARS
    from spatialgears.pipeline.self_check import warnings

    rng, slides = np.random.default_rng(0), [one.copy() for one in small_tissue.slides]
    for slide in slides:
        slide.X = sparse.csr_matrix(slide.X.toarray()[rng.permutation(slide.n_obs)])
    for values in (["geometry.slide_steps=0"], ["geometry.slide_steps=0", "geometry.crossfit=0"], []):
        config = small_config.with_values(["geometry.refiner=none", *values])
        model = GEARS(config).fit(slides, small_tissue.cells)
        told = warnings(model.fitted_.checks, morans_i=model.panel_.morans_i, donors=model.fitted_.donors)
        odd = check_inputs(slides, small_tissue.cells, config=config).warnings
        foreseen, said = (
            {one for one in some if one.startswith(("Weak spatial", "No slide is", "No self-check"))}
            for some in (told, odd)
        )
        assert said == foreseen and len(said) == 1 + bool(values)


def test_too_little_memory_is_said(slides, cells, monkeypatch):
    monkeypatch.setattr("spatialgears.pipeline.prepare.predict_cost", lambda *_, **__: Cost(1.0, 10**15))
    assert any("A run needs about 1000000.0 GB" in text for text in check_inputs(slides, cells).warnings)


def test_slides_alone_and_normalised_values(slides):
    scaled = slides[0].copy()
    scaled.X = (scaled.X.toarray() - scaled.X.toarray().mean(0)) / 3
    report = check_inputs([scaled], normalised=True)
    assert report.kind == "normalised" and report.cells is None and report.depth_ratio is None
    assert 10 <= report.spatial_genes <= 20


def test_bad_input_is_refused(slides, cells):
    half = cells.copy()
    half.X = half.X * 0.3
    with pytest.raises(InputError, match="expected raw counts"):
        check_inputs(slides, half)


def test_cost_grows_with_everything_and_is_linear_in_cells():
    config = Config()
    base = predict_cost(600, 10_000, 300, config)
    for bigger in (
        predict_cost(6000, 10_000, 300, config),
        predict_cost(600, 20_000, 300, config),
        predict_cost(600, 10_000, 900, config),
    ):
        assert bigger.seconds >= base.seconds and bigger.peak_bytes >= base.peak_bytes
    costs = [predict_cost(600, n, 300, config) for n in (100_000, 200_000, 300_000)]
    assert costs[2].seconds - costs[1].seconds == pytest.approx(costs[1].seconds - costs[0].seconds)
    assert costs[2].peak_bytes - costs[1].peak_bytes == pytest.approx(
        costs[1].peak_bytes - costs[0].peak_bytes, rel=1e-6
    )
    quick, paper = (predict_cost(600, 10_000, 300, Config.preset(name)) for name in ("quick", "paper"))
    assert quick.seconds < base.seconds < paper.seconds


def test_pairs_of_minisets_cost_twice_the_network():
    alone, pairs = (
        predict_cost(600, 1000, 300, Config.preset("paper").with_values({"geometry.overlap_kl": kl, **off}))
        for kl in (0.0, 1.0)
        for off in [{"geometry.overlap_shape": 0.0, "geometry.overlap_scale": 0.0}]
    )
    assert pairs.seconds > 1.6 * alone.seconds


def test_the_panel_of_a_network_that_sees_the_embedding_is_the_encoders(small_tissue, small_config):
    config = small_config.with_values(
        {"geometry.inputs": "embedding", "expression.encoder_genes": 40, "expression.n_genes": 20}
    )
    assert check_inputs(small_tissue.slides, small_tissue.cells, config=config).panel_genes == 40


def test_few_spots_cost_less_than_all_steps():
    every = Config().with_values({"geometry.views": 0})
    few, many = ([predict_cost(n, 10_000, 300, c).seconds for c in (Config(), every)] for n in (300, 3000))
    assert few[0] < 0.8 * few[1] and many[0] == many[1]


def test_cost_of_a_best_guess_that_is_refined_itself_in_every_patch():
    paper = Config.preset("paper")
    assert paper.assembly.samples == 0 and paper.assembly.mode == "patches"

    def placing(*changes):
        return predict_cost(0, 10_000, 1000, paper.with_values(changes)).seconds

    assert placing("assembly.steps=0") < placing("assembly.steps=6") < placing("assembly.steps=600")
    assert placing("assembly.coverage=1") < placing("assembly.coverage=10")
    assert placing("assembly.steps=600") == pytest.approx(100 * placing("assembly.steps=6"), rel=0.2)


@pytest.mark.parametrize("genes", [60, 1500])
def test_the_switch_to_parts_is_foreseen_where_it_is_made(genes):
    """Memory of one more cell than fits in one pass is that of the core, not of all cells."""
    config = Config()
    most = cells_in_one_pass(genes, config.assembly)
    below, above = (predict_cost(0, n, genes, config).peak_bytes for n in (most, most + 1))
    assert above < 0.9 * below


def test_some_of_very_many_cells_are_looked_at(small_tissue, small_config, monkeypatch):
    from spatialgears.validate import sampling

    whole = check_inputs(small_tissue.slides, small_tissue.cells, config=small_config)
    monkeypatch.setattr(sampling, "FIT_CELLS", 60)
    some, again, other = (sampling.sample_cells(small_tissue.cells, seed=seed) for seed in (3, 3, 4))
    assert len(set(some)) == 60 and list(some) == sorted(again) and list(some) != list(other)
    report = check_inputs(small_tissue.slides, small_tissue.cells, config=small_config)
    assert report.cells.observations == small_tissue.cells.n_obs
    assert report.cost.seconds == pytest.approx(whole.cost.seconds)
    assert report.cost.peak_bytes == pytest.approx(whole.cost.peak_bytes, rel=0.01)


@pytest.mark.parametrize("form", ["csr", "csc", "dense", "backed"])
@pytest.mark.parametrize("bad", [np.nan, -1.0, 0.5])
def test_the_values_of_all_cells_are_judged(form, bad, small_tissue, monkeypatch, tmp_path):
    from spatialgears.validate import counts, sampling

    monkeypatch.setattr(sampling, "FIT_CELLS", 60)
    monkeypatch.setattr(counts, "CHUNK_ENTRIES", 1000)
    cells = small_tissue.cells.copy()
    x = cells.X.toarray().astype(np.float32)
    x[133, 7] = bad
    cells.X = x if form == "dense" else sparse.csc_matrix(x) if form == "csc" else sparse.csr_matrix(x)
    if form == "backed":
        cells.write_h5ad(tmp_path / "cells.h5ad")
        cells = ad.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    genes = np.asarray(cells.var_names)
    with pytest.raises(InputError) as told:
        sampling.judge_all(cells, genes, layer=None, normalised=False, name="sc")
    if bad != 0.5:
        assert f"in row 133, gene {cells.var_names[7]}" in str(told.value)
    sampling.judge_all(small_tissue.cells, genes, layer=None, normalised=False, name="sc")
