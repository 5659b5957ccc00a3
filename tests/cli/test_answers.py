"""What a finished run answers: regions, genes and types, as files that open elsewhere."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from spatialgears.analysis.annotate import described
from spatialgears.analysis.answers import Questions, answered, require_regions, samples_of
from spatialgears.cli import main
from spatialgears.errors import InputError
from spatialgears.report import report_content


@pytest.fixture(scope="module")
def slides(small_tissue):
    made = [slide.copy() for slide in small_tissue.slides]
    for slide in made:
        x = slide.obsm["spatial"][:, 0]
        slide.obs["side"] = np.where(x > np.median(x), "right", "left")
    return made


@pytest.fixture(scope="module")
def asked(small_result, small_tissue, small_model, slides):
    placed = described(small_result, small_tissue.cells, slides, titles=["a", "b"], panel=small_model.panel_)
    genes = list(small_tissue.cells.var_names[:2])
    asked = Questions("side", genes, abundance=True).about(small_tissue.cells)
    return answered(placed, small_tissue.cells, slides, questions=asked, titles=["a", "b"])


@pytest.fixture(scope="module")
def files(asked, small_tissue, slides, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    asked[0].to_adata(small_tissue.cells, copy=True).write_h5ad(folder / "cells.h5ad")
    slides[0].write_h5ad(folder / "st.h5ad")
    return folder


def gears(*arguments) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(one) for one in arguments])
    return int(end.value.code or 0)


def test_a_run_can_answer_more(asked, small_tissue, slides):
    placed, answers = asked
    cells = placed.to_adata(small_tissue.cells, copy=True)
    assert set(cells.obs["gears_side"]) <= {"left", "right", "none"}
    labels = cells.uns["gears_side"]["labels"]
    given = cells.obs["gears_side"] != "none"
    best = np.array(labels)[cells.obsm["gears_side"].argmax(1)]
    np.testing.assert_array_equal(best[given], cells.obs["gears_side"][given])
    assert "side" in placed.table() and "side_probability" in placed.table()
    n_spots = slides[answers.slide].n_obs
    assert answers.imputed.shape == (n_spots, 2) and answers.abundance.n_obs == n_spots


def test_the_report_shows_the_answers(asked, small_model, small_tissue, slides):
    placed, answers = asked
    found = report_content(
        small_model, placed, small_tissue.cells, slides=slides, names=["a", "b"], answers=answers
    )
    titles = [one.title for one in found.sections]
    assert titles[1:4] == ["Regions", "Genes on the slide", "Cell types on the slide"]
    assert all(one.png and one.table for one in found.sections[1:4]) and "region: side" in found.obs


def test_a_column_no_slide_has_is_refused(slides):
    with pytest.raises(InputError, match=r"No slide has the column 'sid'[^?]*Did you mean 'side'"):
        require_regions(slides, "sid")


def test_regions_genes_and_types_of_a_finished_run(files, capsys):
    st, cells = files / "st.h5ad", files / "cells.h5ad"
    assert gears("transfer", "--cells", cells, "--st", st, "--key", "side", "-o", files / "side.csv") == 0
    table = pd.read_csv(files / "side.csv", index_col="cell")
    assert (
        set(table["gears_side"]) <= {"left", "right", "none"}
        and table["gears_side_probability"].between(0, 1).all()
    )
    assert gears("impute", "--cells", cells, "--st", st, "--genes", "Gene01", "-o", files / "genes.h5ad") == 0
    assert list(ad.read_h5ad(files / "genes.h5ad").var_names) == ["Gene01"]
    assert (
        gears("abundance", "--cells", cells, "--st", st, "--cells-per-spot", 5, "-o", files / "types.csv")
        == 0
    )
    types = pd.read_csv(files / "types.csv", index_col="spot").drop(columns=["x", "y"])
    np.testing.assert_allclose(types.sum(1), 5, rtol=1e-4)
    capsys.readouterr()
    assert gears("transfer", "--cells", st, "--st", st, "--key", "side", "-o", files / "no.csv") == 2
    assert "expected placed cells" in capsys.readouterr().err


def test_permuted_spots_get_no_answer(files, slides, capsys):
    """The corners are those of the slide that the run laid the cells on; the expression is not."""
    permuted = slides[0].copy()
    permuted.X = permuted.X[np.random.default_rng(0).permutation(permuted.n_obs)]
    permuted.write_h5ad(files / "permuted.h5ad")
    where = ("--cells", files / "cells.h5ad", "--st", files / "permuted.h5ad", "-o", files / "none.h5ad")
    for asked in (["transfer", "--key", "side"], ["impute"], ["abundance"]):
        assert gears(*asked, *where) == 2 and not (files / "none.h5ad").exists()
        assert "do not belong on this slide" in capsys.readouterr().err


def test_regions_named_like_our_own_columns_replace_nothing(asked, small_tissue, slides, small_model):
    """A slide may have a column "domain", and so do placed cells."""
    placed, _ = asked
    named = [slide.copy() for slide in slides]
    for slide in named:
        slide.obs["domain"] = slide.obs["side"]
    questions = Questions("domain")
    found, answers = answered(placed, small_tissue.cells, named, questions=questions, titles=["a", "b"])
    assert set(found.obs["gears_slide_domain"]) <= {"left", "right", "none"}
    np.testing.assert_array_equal(found.obs["gears_domain"], placed.obs["gears_domain"])
    content = report_content(
        small_model, found, small_tissue.cells, slides=named, names=["a", "b", "c"], answers=answers
    )
    assert "region: domain" in content.obs and content.domains is not None


def test_a_run_says_what_it_cannot_answer(small_result, small_tissue, small_model, slides):
    permuted = [slide.copy() for slide in slides]
    for slide in permuted:
        slide.X = slide.X[np.random.default_rng(0).permutation(slide.n_obs)]
    cells, titles = small_tissue.cells, ["a", "b"]
    placed = described(small_result, cells, slides, titles=titles, panel=small_model.panel_)
    asked = Questions("side", list(cells.var_names[:2]), abundance=True, types="cell_type")
    placed, answers = answered(placed, cells, permuted, questions=asked, titles=titles)
    assert answers.imputed is None and answers.abundance is None and "gears_side" not in placed.obs
    assert [text.split(":")[0] for text in placed.warnings[-3:]] == [
        "No regions", "No genes on the slide", "No types on the slide",
    ]  # fmt: skip
    content = report_content(
        small_model, placed, cells, slides=permuted, names=["a", "b", "c"], answers=answers
    )
    assert not {"Regions", "Genes on the slide"} & {one.title for one in content.sections}


def test_labels_open_elsewhere(files, capsys):
    cells = files / "cells.h5ad"
    assert gears("export", "--cells", cells, "--column", "gears_domain", "-o", files / "loupe.csv") == 0
    assert list(pd.read_csv(files / "loupe.csv")) == ["Barcode", "gears_domain"]
    assert (
        gears("export", "--cells", cells, "--column", "gears_side", "--to", "xenium", "-o", files / "x.csv")
        == 0
    )
    assert list(pd.read_csv(files / "x.csv")) == ["cell_id", "group"]
    assert gears("export", "--cells", cells, "--column", "gears_dom", "-o", files / "n.csv") == 2
    assert "Did you mean 'gears_domain'" in capsys.readouterr().err


def test_two_samples_are_compared(asked, small_tissue, small_model, slides):
    """Cells on the left of the map are called one sample, those on the right the other."""
    placed, _ = asked
    cells = small_tissue.cells.copy()
    side = placed.on_slides()["X_gears_slide"].pose(placed.coords)[:, 0]
    cells.obs["sample"] = np.where(side > np.median(side), 2, 1)  # numbers are names, too
    _, answers = answered(
        placed, cells, slides, questions=Questions(compare="sample", types="cell_type"), titles=["a", "b"]
    )
    told = answers.comparison.drop(index="all cells").dropna()
    assert len(told) and (told["pvalue_adj"] < 0.05).any() and (told["x"] > 0).all()
    content = report_content(
        small_model, placed, cells=cells, slides=slides, names=["a", "b", "c"], answers=answers
    )
    section = next(one for one in content.sections if one.title == "Two samples compared")
    assert "Yes: " in section.text and section.png and "Cells, 2" in section.table[0]


def test_types_are_found_where_they_are_needed(small_tissue):
    cells = small_tissue.cells.copy()
    assert Questions(abundance=True).about(cells).types == "cell_type" and not Questions().about(cells).types
    cells.obs = cells.obs.rename(columns={"cell_type": "kind"})
    with pytest.raises(InputError, match=r"there are .*kind"):
        Questions(compare="sample").about(cells)


@pytest.mark.parametrize(("values", "found"), [(["a"], "has 1: a"), (["a", "b", "c"], r"has 3: a \(50\)")])
def test_other_than_two_samples_are_refused(values, found, small_tissue):
    cells = small_tissue.cells.copy()
    cells.obs["sample"] = np.resize(values, cells.n_obs)
    with pytest.raises(InputError, match=found):
        samples_of(cells, "sample")
