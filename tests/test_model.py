from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import anndata as ad
import numpy as np
import pytest
from scipy import sparse

import spatialgears as sg
from spatialgears.errors import GearsError, InputError
from spatialgears.model import GEARS

FRESH = """
import sys, json
import anndata as ad, numpy as np
from spatialgears.config import Config
from spatialgears.model import GEARS

data, model, out = sys.argv[1:]
cells = ad.read_h5ad(f"{data}/sc.h5ad")
loaded = GEARS.load(model)
fitted = GEARS(loaded.config).fit([ad.read_h5ad(f"{data}/st_{i}.h5ad") for i in (1, 2)], cells)
for name, one in (("loaded", loaded), ("fitted", fitted)):
    placed = one.reconstruct(cells)
    np.savez(f"{out}/{name}.npz", **{key: getattr(placed, key) for key in json.loads('FIELDS')})
"""
FIELDS = ["coords", "radius50", "radius90", "outside", "samples"]


def same(one, two, fields=FIELDS):
    for key in fields:
        np.testing.assert_array_equal(getattr(one, key), getattr(two, key), err_msg=key)


def frozen(adata):
    """Everything of an AnnData that a careless function could change."""
    return (
        adata.X.toarray().copy(),
        adata.obs.copy(),
        adata.var.copy(),
        {key: np.array(value) for key, value in adata.obsm.items()},
        sorted([*adata.uns, *adata.obsp, *adata.layers]),
    )


def assert_as_before(adata, before):
    values, obs, var, obsm, others = before
    np.testing.assert_array_equal(adata.X.toarray(), values)
    assert adata.obs.equals(obs) and adata.var.equals(var)
    assert sorted(adata.obsm) == sorted(obsm)
    assert all(np.array_equal(adata.obsm[key], value) for key, value in obsm.items())
    assert sorted([*adata.uns, *adata.obsp, *adata.layers]) == others


def test_fit_and_reconstruct_leave_inputs_as_they_are(small_config, small_tissue):
    config = small_config.with_values(
        ["geometry.steps=1", "geometry.refiner_steps=1", "geometry.slide_steps=0"]
    )
    slides, cells = [one.copy() for one in small_tissue.slides], small_tissue.cells.copy()
    before = [frozen(one) for one in (*slides, cells)]
    GEARS(config).fit(slides, cells).reconstruct(cells)
    for adata, state in zip((*slides, cells), before, strict=True):
        assert_as_before(adata, state)


def test_result_has_the_documented_shapes_and_units(small_result, small_tissue):
    n = small_tissue.cells.n_obs
    assert small_result.coords.shape == (n, 2) and small_result.coords.dtype == np.float32
    np.testing.assert_allclose(small_result.coords.mean(0), 0, atol=1e-5)
    assert small_result.samples.shape == (2, n, 2) and small_result.samples.dtype == np.float32
    assert small_result.radius50.shape == small_result.radius90.shape == (n,)
    assert (small_result.radius50 > 0).all() and (small_result.radius50 < small_result.radius90).all()
    assert small_result.outside.dtype == bool and small_result.outside.mean() < 0.2
    assert list(small_result.obs_names) == list(small_tissue.cells.obs_names)
    assert small_result.uncertainty is small_result.radius90
    assert [len(slide) for slide in small_result.slides] == [one.n_obs for one in small_tissue.slides]
    assert not np.array_equal(small_result.samples[0], small_result.samples[1])
    spread = np.linalg.norm(small_result.samples - small_result.coords, axis=2)
    assert np.median(spread) < np.sqrt((small_result.coords**2).sum(1).mean())  # laid on the best guess


def test_slides_lie_among_the_cells(small_result):
    spots = np.concatenate(small_result.slides)
    assert np.linalg.norm(spots.mean(0)) < 1
    for slide in small_result.slides:
        np.testing.assert_allclose(np.sqrt(((slide - slide.mean(0)) ** 2).sum(1).mean()), 1, rtol=1e-4)


def test_the_layout_has_to_do_with_the_truth(small_result, small_tissue):
    from spatialgears.metrics import evaluate

    row = evaluate(small_result.coords, small_tissue.truth.obsm["spatial"], k=10)
    assert row["spearman"] > 0.3  # fifteen steps of a tiny network; without signal it would be zero


def test_learnt_attributes(small_model):
    assert len(small_model.panel_.genes) == len(small_model.panel_.weights) <= 60
    assert {"fold-0/loss", "fold-1/loss", "refiner/loss"} <= set(small_model.history_)
    cells, *spots = small_model.checks_
    titles = [check.title for check in small_model.checks_]
    assert titles == [
        "Cells, by kept-out genes",
        "Held-out spots of slide 1",
        "Held-out spots of slide 2",
        "Held-out slide 1",
        "Held-out slide 2",
    ]
    assert all(check.reference["spearman"] > 0.5 for check in spots)
    assert repr(small_model).startswith(
        f"GEARS fitted on 2 slides and 53 genes; self-check: Cells, by kept-out genes {cells.verdict}, Held-out spots of "
    )
    *small, few = small_model.warnings_
    assert few == "Only 60 genes are shared; places will be coarse."
    assert [text.split(" spots, ")[0] for text in small] == ["slide 1 has 83", "slide 2 has 84"]


def test_same_seed_same_answer_in_a_fresh_process(small_model, small_result, small_files, tmp_path):
    small_model.save(tmp_path / "model")
    code = FRESH.replace("FIELDS", json.dumps(FIELDS))
    subprocess.run([sys.executable, "-c", code, small_files, tmp_path / "model", tmp_path], check=True)
    for name in ("loaded", "fitted"):
        with np.load(tmp_path / f"{name}.npz") as found:
            for key in FIELDS:
                np.testing.assert_array_equal(found[key], getattr(small_result, key), err_msg=f"{name} {key}")


def test_another_seed_gives_another_answer(small_config, small_tissue, small_result):
    config = small_config.with_values(["seed=1", "geometry.slide_steps=0", "assembly.samples=0"])
    other = GEARS(config).fit(small_tissue.slides, small_tissue.cells).reconstruct(small_tissue.cells)
    assert not np.array_equal(other.coords, small_result.coords)
    assert other.samples.shape == (0, 150, 2)


def test_save_then_load_places_bit_for_bit(small_model, small_result, small_tissue, tmp_path):
    small_model.save(tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "config.json",
        "genes.txt",
        "meta.json",
        "weights.safetensors",
    ]
    loaded = GEARS.load(tmp_path / "model")
    same(loaded.reconstruct(small_tissue.cells), small_result)
    assert loaded.config == small_model.config and loaded.warnings_ == small_model.warnings_
    assert loaded.history_ == small_model.history_
    assert [check.to_dict()["words"] for check in loaded.checks_] == [c.words for c in small_model.checks_]
    np.testing.assert_array_equal(loaded.panel_.genes, small_model.panel_.genes)


def test_unfitted_model_says_what_to_do(small_tissue, tmp_path):
    model = sg.GEARS()
    assert model.config == sg.Config.preset("default") and repr(model) == "GEARS, not fitted"
    for call in (
        lambda: model.reconstruct(small_tissue.cells),
        lambda: model.save(tmp_path / "m"),
        lambda: model.panel_,
    ):
        with pytest.raises(GearsError, match=r"has not been fitted. Call fit"):
            call()
    assert not (tmp_path / "m").exists()


def test_a_few_missing_genes_are_named(small_model, small_tissue):
    light = small_model.panel_.genes[np.argsort(small_model.panel_.weights)[:2]]
    fewer = small_tissue.cells[:, ~small_tissue.cells.var_names.isin(light)].copy()
    placed = small_model.reconstruct(fewer)
    (told,) = [one for one in placed.warnings if "2 of the model's" in one]
    assert all(gene in told for gene in light)
    assert np.isfinite(placed.coords).all()


def test_many_missing_genes_are_refused(small_model, small_tissue):
    kept = small_model.panel_.genes[-5:]
    with pytest.raises(InputError, match="genes are missing"):
        small_model.reconstruct(small_tissue.cells[:, list(kept)].copy())


def test_genes_in_another_order_and_unknown_genes_change_nothing(small_model, small_tissue, small_result):
    cells = small_tissue.cells
    more = ad.concat([cells, ad.AnnData(cells.X[:, :3].copy(), cells.obs[[]].copy())], axis=1, join="outer")
    more.var_names = [*cells.var_names, "new 1", "new 2", "new 3"]
    placed = small_model.reconstruct(more[:, ::-1].copy())
    np.testing.assert_array_equal(placed.coords, small_result.coords)


def test_dense_sparse_views_and_backed_give_the_same(small_model, small_tissue, small_result, small_files):
    dense = small_tissue.cells.copy()
    dense.X = dense.X.toarray()
    columns = small_tissue.cells.copy()
    columns.X = sparse.csc_matrix(columns.X)
    view = small_tissue.cells[:, :]
    backed = ad.read_h5ad(small_files / "sc.h5ad", backed="r")
    for cells in (dense, columns, view, backed):
        same(small_model.reconstruct(cells), small_result, ["coords", "radius90", "outside"])
    assert backed.isbacked
    backed.file.close()


def test_counts_from_a_layer(small_model, small_tissue, small_result):
    cells = small_tissue.cells.copy()
    cells.layers["counts"] = cells.X.copy()
    cells.X = cells.X * 0.5
    with pytest.raises(InputError, match="counts"):
        small_model.reconstruct(cells)
    np.testing.assert_array_equal(small_model.reconstruct(cells, layer="counts").coords, small_result.coords)


@pytest.mark.parametrize("n", [1, 3, 20])
def test_few_cells(small_model, small_tissue, n):
    cells = small_tissue.cells[:n].copy()
    placed = small_model.reconstruct(cells)
    assert placed.coords.shape == (n, 2) and np.isfinite(placed.coords).all()
    assert np.isfinite(placed.samples).all() and (placed.radius90 > 0).all()
    written = placed.to_adata(cells, copy=True)
    assert ("gears_distances" in written.obsp) == (n > 1)
    assert f"{n} cell" in placed.status and "placed beside" in placed.status


def test_a_few_cells_are_as_sure_and_as_far_apart_as_among_many(small_model, small_tissue, small_result):
    """The network sees too little of a tissue in a few cells, so spots stand beside them."""
    few = small_model.reconstruct(small_tissue.cells[:20].copy())
    ratio = np.median(few.radius90 / small_result.radius90[:20])
    assert 0.5 < ratio < 2
    spread = [np.linalg.norm(c - c.mean(0), axis=1).mean() for c in (few.coords, small_result.coords[:20])]
    assert 0.4 < spread[0] / spread[1] < 2.5


def test_slides_and_cells_that_do_not_belong_together_are_a_warning(small_config, small_tissue):
    shuffled = small_tissue.cells[:, np.random.default_rng(0).permutation(60)].copy()
    shuffled.var_names = small_tissue.cells.var_names
    shuffled.X = shuffled.X * 50  # and deeper than any spot
    config = small_config.with_values(
        {"geometry": {"steps": 1, "refiner_steps": 1, "slide_steps": 0, "crossfit": 1, "nearest": False}}
    )
    told = " ".join(sg.GEARS(config).fit(small_tissue.slides, shuffled).warnings_)
    assert "Were slides and cells swapped?" in told and "hardly agrees" in told


@pytest.fixture(scope="module")
def stranger(small_tissue):
    """Cells whose genes have one another's names."""
    cells = small_tissue.cells.copy()
    cells.var_names = cells.var_names[::-1]
    return cells


def test_later_cells_that_do_not_belong_to_the_slides_are_a_warning(
    small_model, small_result, stranger, small_tissue, tmp_path
):
    def told(model, cells):
        return [one for one in model.reconstruct(cells).warnings if "co-expressed" in one or "agrees" in one]

    found = told(small_model, stranger)
    assert any(
        one.startswith("Genes that are co-expressed on the slides are less so in the cells") for one in found
    )
    small_model.save(tmp_path / "model")
    assert told(GEARS.load(tmp_path / "model"), stranger) == found
    assert told(small_model, small_tissue.cells[:120].copy()) == []
    assert told(small_model, stranger[:99].copy()) == []  # a few need not look like their tissue
    assert not any("co-expressed" in one for one in small_result.warnings)


def test_what_the_fit_said_of_its_cells_is_not_said_twice(small_config, small_tissue, stranger):
    config = small_config.with_values(
        {"geometry": {"steps": 1, "refiner_steps": 1, "slide_steps": 0, "crossfit": 1, "nearest": False}}
    )
    model = GEARS(config).fit(small_tissue.slides, stranger)
    for cells in (stranger, stranger[::-1].copy()):
        placed = model.reconstruct(cells)
        assert sum("Genes that are co-expressed" in one for one in placed.warnings) == 1


def test_what_the_fit_said_of_its_cells_is_not_said_of_others(small_model, small_tissue, monkeypatch):
    said = ["the cells: 3 of 150 have no counts"]
    monkeypatch.setattr(GEARS, "warnings_", property(lambda self: said))
    own, later = (
        small_model.reconstruct(cells).warnings
        for cells in (small_tissue.cells, small_tissue.cells[:120].copy())
    )
    assert said[0] in own and said[0] not in later
    assert f"When the model was fitted: {said[0]}" in later


def test_spots_of_the_slides_given_as_later_cells_are_told(small_model, small_tissue):
    (told,) = (one for one in small_model.reconstruct(small_tissue.slides[0]).warnings if "own spots" in one)
    assert told.startswith("the cells: 100% of them have exactly the values of spots of the model's slides")


def test_a_checkpoint_of_other_data_is_refused(small_config, small_tissue, tmp_path):
    model = sg.GEARS(small_config).fit(small_tissue.slides, small_tissue.cells, checkpoint=tmp_path)
    other = small_tissue.slides[0].copy()
    other.obsm["spatial"] = other.obsm["spatial"][::-1].copy()
    with pytest.raises(GearsError, match="belongs to another configuration, seed or data"):
        model.fit([other, small_tissue.slides[1]], small_tissue.cells, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("change", "options"), [("expression.thinning=false", {}), ("seed=0", {"normalised": True})]
)
def test_a_checkpoint_of_other_expression_is_refused(small_config, small_tissue, tmp_path, change, options):
    config = small_config.with_values(
        {"geometry": {"steps": 1, "refiner_steps": 1, "slide_steps": 0, "crossfit": 1, "nearest": False}}
    )
    slides, cells = small_tissue.slides, small_tissue.cells
    sg.GEARS(config).fit(slides, cells, checkpoint=tmp_path)
    with pytest.raises(GearsError, match="belongs to another configuration, seed or data"):
        sg.GEARS(config.with_values(change)).fit(slides, cells, checkpoint=tmp_path, **options)


def test_what_a_model_was_fitted_on_is_what_it_is_given(small_model, small_tissue):
    with pytest.raises(
        InputError, match=r"fitted on counts, and normalised=True(.|\n)*with counts, or fit another"
    ):
        small_model.reconstruct(small_tissue.cells, normalised=True)
    named = small_model.reconstruct(small_tissue.cells, normalised=False)
    assert np.isfinite(named.coords).all()


def test_no_cells_are_refused(small_model, small_tissue):
    with pytest.raises(InputError, match="there are no cells"):
        small_model.reconstruct(small_tissue.cells[:0].copy())


def test_empty_cells_are_marked_and_placed_somewhere(small_model, small_tissue):
    cells = small_tissue.cells.copy()
    values = cells.X.tolil()
    values[[3, 77]] = 0
    cells.X = sparse.csr_matrix(values)
    placed = small_model.reconstruct(cells)
    assert placed.outside[[3, 77]].all()
    assert np.isfinite(placed.coords).all() and np.isfinite(placed.radius90).all()


@pytest.mark.parametrize("inputs", ["expression", "embedding"])
def test_an_encoder_is_saved_with_the_model(small_config, small_tissue, tmp_path, inputs):
    config = small_config.with_values(
        {
            "expression": {"epochs": 1, "embed_dim": 8},
            "geometry": {"inputs": inputs, "steps": 1, "refiner_steps": 1, "slide_steps": 0, "crossfit": 1},
            "assembly": {"samples": 0},
        }
    )
    model = GEARS(config).fit(small_tissue.slides, small_tissue.cells)
    model.save(tmp_path / "model")
    loaded = GEARS.load(tmp_path / "model")
    same(loaded.reconstruct(small_tissue.cells), model.reconstruct(small_tissue.cells))
    assert {key.partition("/")[0] for key in loaded.history_} >= {"encoder", "fold-0"}


def test_a_notebook_shows_what_the_model_was_fitted_on_and_its_verdicts(small_model, monkeypatch):
    assert "not fitted" in sg.GEARS()._repr_html_()
    fitted = replace(small_model._fitted, warnings=["Beware of <b>bold</b> words."])
    monkeypatch.setattr(small_model, "_fitted", fitted)
    page = small_model._repr_html_()
    assert "2 slides" in page and all(one.title in page for one in small_model.checks_)
    assert "Beware of &lt;b&gt;bold" in page and page.count("<tr>") == 2 + len(small_model.checks_)


def test_progress_can_be_shown(small_model, small_tissue, capsys):
    cells = small_tissue.cells[:30].copy()
    small_model.reconstruct(cells)
    assert not capsys.readouterr().err
    small_model.reconstruct(cells, progress=True)
    assert "/" in capsys.readouterr().err


def test_warnings_are_logged_before_the_work_and_kept_in_the_result(
    small_model, small_config, small_tissue, stranger, caplog
):
    rec = small_model.reconstruct(stranger)
    assert caplog.messages and set(caplog.messages) <= set(rec.warnings)
    caplog.clear()
    config = small_config.with_values({"geometry": {"steps": 1, "refiner_steps": 1, "nearest": False}})
    logged_first = []
    model = GEARS(config).fit(
        small_tissue.slides[0],
        small_tissue.cells,
        progress=lambda *_: logged_first.append(len(caplog.messages)),
    )
    assert logged_first[0] == len(caplog.messages) == 3
    assert caplog.messages[:2] == model.warnings_ and caplog.messages[2].startswith("There is one slide: ")
    found = model.reconstruct(small_tissue.cells).warnings
    assert set(caplog.messages) <= set(found) and len(set(found)) == len(found)


def test_places_come_with_what_speaks_against_them(small_result, small_model):
    assert small_result.warnings[: len(small_model.warnings_)] == small_model.warnings_
    assert [text.split(":")[0] for text in small_result.self_check] == [
        one.title for one in small_model.checks_
    ]


def test_progress_is_told(small_model, small_tissue):
    told = []
    small_model.reconstruct(small_tissue.cells[:30].copy(), progress=lambda *one: told.append(one))
    assert ("samples", 2, 2, {}) in told


def test_without_held_out_spots_radii_are_unknown_but_places_are_not(small_config, small_tissue):
    config = small_config.with_values(
        {"geometry": {"crossfit": 0, "slide_steps": 0, "steps": 3, "refiner_steps": 0, "refiner": "none"}}
    )
    model = GEARS(config).fit(small_tissue.slides[0], small_tissue.cells)
    placed = model.reconstruct(small_tissue.cells)
    assert [one.title for one in model.checks_] == ["Cells, by kept-out genes"]
    assert np.isfinite(placed.coords).all() and np.isnan(placed.radius90).all()
    assert placed.samples.shape == (0, 150, 2)  # no refiner: nothing to draw from


def test_a_preset_may_be_named():
    assert sg.GEARS("quick").config == sg.Config.preset("quick") and sg.GEARS().config == sg.Config.preset(
        "default"
    )
    with pytest.raises(sg.errors.ConfigError, match="No preset is called 'fast'"):
        sg.GEARS("fast")


def test_cells_with_shuffled_genes_are_not_taken_for_those_of_the_fit(
    small_model, small_result, small_tissue
):
    rng, cells = np.random.default_rng(0), small_tissue.cells.copy()
    cells.X = sparse.csr_matrix(rng.permuted(cells.X.toarray(), axis=0))  # sums over cells stay
    result = small_model.reconstruct(cells)
    assert result.cell_check is not small_result.cell_check and result.cell_check.verdict == "none"
    assert any("Failed check on cells" in text for text in result.warnings)
    assert not any("Failed check on cells" in text for text in small_result.warnings)


def test_cells_of_the_fit_are_known_again_with_empty_ones_among_them(small_model, small_result, small_tissue):
    empty = small_tissue.cells[:3].copy()
    empty.X = sparse.csr_matrix(empty.shape, dtype=np.float32)
    empty.obs_names = ["a", "b", "c"]
    both = ad.concat([empty, small_tissue.cells])
    assert small_model.reconstruct(both).cell_check is small_result.cell_check
