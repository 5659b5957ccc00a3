from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

from spatialgears.pipeline import cell_check as check
from spatialgears.pipeline import gene_reading
from spatialgears.pipeline.gene_reading import CheckedSlide, correlations


class Tissue:
    """Genes that follow smooth fields over the unit square: cells and spots see them with noise of their own."""

    def __init__(
        self, n_cells: int = 1500, n_spots: int = 300, n_genes: int = 42, noise: float = 0.5
    ) -> None:
        rng = np.random.default_rng(0)
        waves, phase, mix = rng.uniform(1, 4, (6, 2)), rng.uniform(0, 6, 6), rng.normal(size=(6, n_genes))
        self.cells, self.spots = rng.uniform(size=(n_cells, 2)), rng.uniform(size=(n_spots, 2))

        def seen(places: np.ndarray, noise: float) -> np.ndarray:
            x = np.sin(places @ waves.T * 2 + phase) @ mix
            x = (x - x.mean(0)) / x.std(0)
            return (x + noise * rng.normal(size=x.shape)).astype(np.float32)

        self.expression = seen(self.cells, 2 * noise)
        measured = seen(self.spots, noise)
        self.slide = CheckedSlide(np.arange(n_spots), measured, np.full(n_genes, 1 / np.sqrt(1 + noise**2)))
        self.morans_i = np.linspace(0.9, 0.1, n_genes)
        self.names = [f"g{i}" for i in range(n_genes)]

    def read(self, coords: np.ndarray, *, spots: np.ndarray | None = None, **kwargs) -> gene_reading.Reading:
        where = self.spots if spots is None else spots
        return gene_reading.read_kept_out(
            lambda mask: (coords, [where]), self.expression, [self.slide], self.morans_i, seed=0, **kwargs
        )

    def judged(self, coords: np.ndarray) -> check.CellCheck:
        reading = self.read(coords)
        return check.judge(reading, [self.slide], genes=self.names, coords=self.spots, n_cells=len(coords))


@pytest.fixture(scope="module")
def tissue() -> Tissue:
    return Tissue()


def test_true_places_reach_what_noise_allows(tissue):
    found = tissue.judged(tissue.cells)
    assert found.verdict == "good"
    assert found.ceiling - 0.06 < found.r < found.ceiling + 0.03
    assert abs(found.shuffled) < 0.05 and found.n_genes == 21
    assert found.by_gene["gene"][0] == "g0" and len(found.by_gene["r"]) == 21


def test_places_that_are_further_off_are_worth_less(tissue):
    rng = np.random.default_rng(1)
    noisy = [
        tissue.judged(tissue.cells + s * rng.normal(size=tissue.cells.shape)).r for s in (0, 0.1, 0.3, 1)
    ]
    assert sorted(noisy, reverse=True) == noisy and noisy[-1] < 0.5 * noisy[0]


def test_the_pose_does_not_matter(tissue):
    turn = np.array([[0.6, 0.8], [0.8, -0.6]])
    turned = tissue.read(tissue.cells @ turn + 5, spots=tissue.spots @ turn + 5)
    np.testing.assert_allclose(turned.r, tissue.read(tissue.cells).r, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_random_places_and_random_cells_never_pass(tissue, seed):
    rng = np.random.default_rng(seed)
    assert tissue.judged(rng.permutation(tissue.cells)).verdict == "none"
    dealt = Tissue(n_cells=400)
    for gene in dealt.expression.T:
        rng.shuffle(gene)
    assert dealt.judged(dealt.cells).verdict == "none"


def test_every_gene_is_masked_once_and_a_missing_one_always(tissue):
    masks = []

    def place(mask):
        masks.append(mask)
        return tissue.cells, [tissue.spots]

    missing = np.arange(42) == 3
    args = (place, tissue.expression, [tissue.slide], tissue.morans_i)
    found = gene_reading.read_kept_out(*args, missing=missing, seed=0)
    assert np.sum(masks, axis=0).tolist() == [7 if gene == 3 else 1 for gene in range(42)]
    assert len(found.genes) == 21 and 3 not in found.genes
    assert found.genes.tolist() == [
        gene for gene in range(22) if gene != 3
    ]  # the most spatial ones, in order


def test_three_genes_are_shown_a_good_a_typical_and_a_poor_one(tissue):
    found = tissue.judged(tissue.cells)
    shown = found.patterns
    assert shown.measured.shape == shown.predicted.shape == (300, 3) and shown.r == sorted(
        shown.r, reverse=True
    )
    assert min(found.by_gene["r"]) <= shown.r[2] < shown.r[1] < shown.r[0] <= max(found.by_gene["r"])
    np.testing.assert_allclose(correlations(shown.measured, shown.predicted), shown.r, atol=1e-3)
    np.testing.assert_array_equal(shown.coords, tissue.spots)


def test_stored_and_restored(tissue):
    found = tissue.judged(tissue.cells)
    again = check.CellCheck.restore(json.loads(json.dumps(found.meta())), found.patterns.tensors())
    assert again.meta() == found.meta() and again.sentence == found.sentence
    np.testing.assert_array_equal(again.patterns.predicted, found.patterns.predicted)
    unknown = check.not_checked("5 cells are too few.", n_cells=5)
    again = check.CellCheck.restore(json.loads(json.dumps(unknown.meta())), {})
    assert np.isnan(again.r) and again.patterns is None and not again.checked


def test_warnings_follow_the_cells(tissue):
    good, none = (
        tissue.judged(tissue.cells),
        tissue.judged(np.random.default_rng(0).permutation(tissue.cells)),
    )
    assert check.warnings(good, spots=False) == [] and check.warnings(good, spots=True) == []
    (alone,), (against,) = (check.warnings(none, spots=spots) for spots in (False, True))
    assert alone.startswith("Failed check on cells") and "Do not use the coordinates" in alone
    assert against.startswith(alone) and "spots are not cells" in against


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_a_share_of_noise_among_the_cells_is_counted_and_warned_of(share):
    mixed = Tissue(n_genes=84)
    rng, noise = np.random.default_rng(3), np.arange(1500) < share * 1500
    mixed.expression[noise] = rng.permuted(mixed.expression, axis=0)[noise]
    found = mixed.judged(mixed.cells)
    assert found.verdict == "good" and found.unmatched == pytest.approx(share, abs=0.07)
    told = check.warnings(found, spots=True)
    assert bool(told) == (share > 0) and all(
        "of the cells fit their predicted position no better" in text for text in told
    )


def test_parts_are_balanced_by_how_spatial_genes_are():
    morans_i = np.random.default_rng(0).uniform(size=30)
    part = gene_reading.balanced_parts(morans_i, 7, seed=1)
    ranked = part[np.argsort(-morans_i)]
    for start in range(0, 28, 7):
        assert sorted(ranked[start : start + 7]) == list(range(7))
    assert max(np.bincount(part)) - min(np.bincount(part)) <= 1


def test_direct_mapping_does_not_see_masked_genes(tissue):
    seen = []

    def soft(*arrays):
        seen.append(arrays)
        return check_soft(*arrays)

    check_soft = gene_reading.soft_mapping
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gene_reading, "soft_mapping", soft)
        masks = []
        gene_reading.read_kept_out(
            lambda mask: (masks.append(mask), (tissue.cells, [tissue.spots]))[1],
            tissue.expression, [tissue.slide], tissue.morans_i, seed=0,
        )  # fmt: skip
    for mask, (products, spots, cells) in zip(masks, seen, strict=True):
        s, c = tissue.slide.values[:, ~mask], tissue.expression[:, ~mask]
        np.testing.assert_allclose(products, s @ c.T, atol=1e-3)
        np.testing.assert_allclose(spots, (s**2).sum(1), rtol=1e-4)
        np.testing.assert_allclose(cells, (c**2).sum(1), rtol=1e-4)


def test_soft_mapping_weighs_similar_cells_most():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 30)).astype(np.float32)
    weights = gene_reading.soft_mapping(x @ x.T, (x**2).sum(1), (x**2).sum(1))
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    assert (weights.argmax(1) == np.arange(40)).all()


def test_the_noise_ceiling_is_what_the_true_rates_reach():
    rng = np.random.default_rng(0)
    rates = np.exp(rng.normal(size=(3000, 12)) * np.linspace(0, 0.8, 12)) * 6
    counts = rng.poisson(rates)
    depth = np.full((3000, 1), rates.sum(1).mean())
    measured = np.log1p(counts / counts.sum(1, keepdims=True) * depth)
    reached = correlations(measured, np.log1p(rates / rates.sum(1, keepdims=True) * depth))
    found = gene_reading.noise_ceiling(sparse.csr_matrix(counts), target=float(depth[0, 0]), seed=0)
    np.testing.assert_allclose(found[4:], reached[4:], atol=0.04)
    assert found[0] < 0.35  # a gene without signal


def test_the_ceiling_of_values_that_are_not_counts():
    rng = np.random.default_rng(0)
    coords = rng.uniform(size=(4000, 2))
    smooth = np.sin(6 * coords[:, 0])
    values = np.column_stack([smooth, smooth + smooth.std() * rng.normal(size=4000), rng.normal(size=4000)])
    found = gene_reading.smooth_ceiling(values, coords)
    np.testing.assert_allclose(found, [1, np.sqrt(0.5), 0], atol=0.12)
    assert gene_reading.smooth_ceiling(np.ones((10, 1)), coords[:10]).tolist() == [0]


def test_few_genes_or_noise_are_not_judged(tissue):
    small = Tissue(n_genes=12)
    assert small.judged(small.cells).verdict == "not checked"
    noisy = Tissue()
    noisy.slide = CheckedSlide(noisy.slide.spots, noisy.slide.values, np.full(42, 0.1))
    found = noisy.judged(noisy.cells)
    assert found.verdict == "not checked" and "noisy" in found.sentence
    assert found.to_dict()["r"] is None


def test_constant_columns_have_no_correlation():
    a = np.column_stack([np.ones(5), np.arange(5)])
    np.testing.assert_allclose(correlations(a, np.column_stack([np.arange(5)] * 2)), [0, 1])
