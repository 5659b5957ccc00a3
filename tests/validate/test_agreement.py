from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
from scipy import sparse

from spatialgears.config import Config
from spatialgears.datasets import simulate_tissue
from spatialgears.validate import validate_inputs
from spatialgears.validate.agreement import AGREEING, TOGETHER, SlideCellAgreement, SlideExpression


def likeness(slides: list[ad.AnnData], cells: ad.AnnData | None, **options: object) -> SlideCellAgreement:
    return SlideCellAgreement.of(validate_inputs(slides, cells, **options))


@pytest.fixture(scope="module")
def tissue():
    return simulate_tissue(n_cells=600, n_genes=120, n_sections=2, spots=250, seed=0)


def told(found: SlideCellAgreement) -> str:
    return "\n".join(found.warnings(Config()))


def with_genes_exchanged(cells: ad.AnnData) -> ad.AnnData:
    """Each gene under the name of one whose mean is about the same: what a wrong look-up of names leaves."""
    order = np.argsort(np.asarray(cells.X.mean(0)).ravel())
    partner = np.arange(len(order))
    partner[order[:-1:2]], partner[order[1::2]] = order[1::2], order[:-1:2]
    return ad.AnnData(cells.X[:, partner], obs=cells.obs, var=cells.var)


def test_one_tissue_is_alike_in_everything(tissue):
    found = likeness(tissue.slides, tissue.cells)
    assert found.coexpression is not None and 0.75 < found.coexpression <= 1
    assert found.agreement is not None and found.agreement > 0.8
    assert told(found) == ""


def test_exchanged_genes_are_seen_by_what_goes_together_alone(tissue):
    found = likeness(tissue.slides, with_genes_exchanged(tissue.cells))
    assert found.agreement is not None and found.agreement > AGREEING
    assert found.coexpression is not None and found.coexpression < 0.3
    assert told(found).startswith(
        "Genes that are co-expressed on the slides are less so in the cells (agreement"
    )


@pytest.mark.parametrize(("shift", "alike"), [(1.0, True), (4.0, False)])
def test_a_strong_shift_of_platform_is_told(shift, alike):
    tissue = simulate_tissue(n_cells=600, n_genes=120, n_sections=1, spots=250, shift=shift, seed=1)
    found = likeness(tissue.slides, tissue.cells).coexpression
    assert found is not None and (found > TOGETHER) == alike


def test_shallow_cells_and_few_spots_are_no_reason_to_warn():
    tissue = simulate_tissue(n_cells=400, n_genes=120, n_sections=1, spots=80, cell_depth=100, seed=2)
    found = likeness(tissue.slides, tissue.cells)
    assert found.coexpression is not None and found.coexpression > TOGETHER


def test_scales_of_genes_do_not_matter(tissue):
    slides = [ad.AnnData(np.log1p(s.X.toarray()), obsm=s.obsm, var=s.var) for s in tissue.slides]
    x = np.log1p(tissue.cells.X.toarray())
    scales = np.random.default_rng(0).uniform(0.4, 1, x.shape[1])
    first, second = (
        likeness(slides, ad.AnnData(y, var=tissue.cells.var), normalised=True).coexpression
        for y in (x, x * scales)
    )
    assert first == pytest.approx(second, abs=1e-4)


def shuffled(cells: ad.AnnData) -> ad.AnnData:
    """Each gene dealt out anew among the cells: means and depth are kept, and nothing goes together."""
    x = np.random.default_rng(0).permuted(cells.X.toarray(), axis=0)
    return ad.AnnData(sparse.csr_matrix(x), var=cells.var)


def test_cells_in_which_nothing_goes_together_are_told():
    tissue = simulate_tissue(n_cells=400, n_genes=300, n_sections=1, spots=250, seed=0)
    found = likeness(tissue.slides, shuffled(tissue.cells))
    assert found.noise and found.coexpression is None
    assert found.unknown == {"coexpression": "noise in the cells"}
    assert told(found).startswith("The cells show no reproducible co-expression")


@pytest.mark.parametrize("few", [{"cell_depth": 20}, {"cell_depth": 50}, {"n_cells": 60}])
def test_too_little_to_tell_is_no_reason_to_warn(few):
    tissue = simulate_tissue(**{"n_cells": 400, "n_genes": 300, "spots": 250, "seed": 0, **few})
    for cells in (tissue.cells, shuffled(tissue.cells)):
        found = likeness(tissue.slides, cells)
        assert told(found) == ""
        if found.coexpression is None:
            assert found.unknown == {"coexpression": "noise in the cells: few of them, or shallow"}


def test_noise_on_the_slides_is_no_evidence_against_cells(tissue):
    slide, rng = tissue.slides[0].copy(), np.random.default_rng(0)
    slide.X = sparse.csr_matrix(rng.poisson(1.0, slide.shape).astype(np.float32))
    found = likeness([slide], tissue.cells)
    assert found.unknown == {"coexpression": "noise on the slides: few spots, or shallow"} and not found.noise


def test_nothing_is_said_of_slides_alone(tissue):
    found = likeness(tissue.slides, None)
    assert (found.depth_ratio, found.agreement, found.coexpression) == (None, None, None) and told(
        found
    ) == ""


def test_few_genes_do_not_raise_a_false_alarm():
    rng = np.random.default_rng(0)

    def compared(n_genes, r):
        """Means over genes whose logs correlate with r."""
        shared, own = rng.normal(size=n_genes), rng.normal(size=n_genes)
        own -= shared * (shared @ own) / (shared @ shared)
        shared, own = ((part - part.mean()) / part.std() for part in (shared, own))
        logs = 3 + shared, 3 + r * shared + np.sqrt(1 - r**2) * own
        slide, cells = (
            sparse.csr_matrix(rng.poisson(np.exp(log), (200, n_genes)).astype(np.float32)) for log in logs
        )
        found = SlideExpression.of([slide], cells, forms=["counts", "counts"], raw=True)
        return found.compare(cells, form="counts", raw=True)

    few, many = compared(50, 0.3), compared(1000, 0.3)
    assert few.agreement is None and "50 genes are too few to tell" in few.unknown["agreement"]
    assert many.agreement == pytest.approx(0.3, abs=0.1)
    assert compared(50, 0.9).agreement > 0.8 and compared(50, -0.2).agreement < 0.1
