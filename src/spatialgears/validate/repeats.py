"""Spots that repeat other spots of their slide: copies, copies of which counts were removed, overlapping bins.

A held-out spot would be placed by its copy in the training data, whatever its expression says about the tissue (leakage).
Only one of such spots is used.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import KDTree
from scipy.special import ndtr

from spatialgears.errors import InputError
from spatialgears.validate import ValidInputs
from spatialgears.validate.copies import COPIED, TELLING
from spatialgears.validate.order import row_keys

#: Genes with the most counts by which spots are compared; neighbours in place and in expression that each is compared with.
GENES, NEAR, SIMILAR = 300, 20, 3
#: More spots than this are compared with their neighbours in place only, and with exact copies anywhere.
SEARCHED = 10_000
#: Two spots share counts if they differ less than independent ones would: share of false discoveries that is accepted, and
#: largest share of the expected difference.
FALSE, SHARE = 0.01, 0.6
#: Pairs, and rows of similarities, that are held at one time.
CHUNK, ROWS = 20_000, 500
#: Share of repeated spots that is worth a warning, and spots that must remain.
TOLD, FEWEST = 0.01, 30


def without_repeats(inputs: ValidInputs, order: list[int]) -> ValidInputs:
    """The inputs with one of each set of spots that repeat each other, and warnings in this ``order`` of the slides.

    Slides that share the counts of most of their spots are refused.
    """
    _check_apart(inputs, order)
    kept = [
        independent(counts, coords, inputs.genes, counted=form == "counts")
        for counts, coords, form in zip(inputs.slides, inputs.coords, inputs.forms, strict=False)
    ]
    if all(one.all() for one in kept):
        return inputs
    warnings = list(inputs.warnings)
    for s in order:
        title, n, left = inputs.titles[s], len(kept[s]), int((kept[s] & ~inputs.empty_spots[s]).sum())
        if left < FEWEST:
            raise InputError(
                f"{title}: expected at least {FEWEST} spots that are measured independently, found {left}: of {n:,} spots, "
                f"{n - int(kept[s].sum()):,} repeat others.",
                "Give each spot once, and bins that do not overlap.",
            )
        if n - kept[s].sum() > TOLD * n:
            warnings.append(
                f"{title}: {n - int(kept[s].sum()):,} of {n:,} spots repeat others: they are copies of them, or share their "
                "counts as overlapping bins do. A copy would leak the position of a held-out spot, so one of each is used."
            )
    return replace(
        inputs,
        slides=[counts[np.flatnonzero(keep)] for counts, keep in zip(inputs.slides, kept, strict=True)],
        coords=[coords[keep] for coords, keep in zip(inputs.coords, kept, strict=True)],
        empty_spots=[empty[keep] for empty, keep in zip(inputs.empty_spots, kept, strict=True)],
        spot_rows=[rows[keep] for rows, keep in zip(inputs.spot_rows, kept, strict=True)],
        warnings=warnings,
    )


def _check_apart(inputs: ValidInputs, order: list[int]) -> None:
    """Refuse a slide most of whose spots share their counts with spots of another, as those of a thinned copy do."""
    counted = [s for s in order if inputs.forms[s] == "counts"]
    for second, first in ((b, a) for n, b in enumerate(counted) for a in counted[:n]):
        rows = np.linspace(0, inputs.slides[second].shape[0] - 1, ROWS).astype(int)
        some = inputs.slides[second][np.unique(rows)]
        x = profiles(sparse.vstack([some, inputs.slides[first]], format="csr"))
        z, n = _standardised(x), some.shape[0]
        pairs = np.stack([np.arange(n), n + (z[:n] @ z[n:].T).argmax(1)], axis=1)
        if len(_alike(x, pairs)) > COPIED * n:
            raise InputError(
                f"{inputs.titles[first]} and {inputs.titles[second]} share the counts of their spots: expected "
                "different slides, found one that was made from the other, which would leak the answer when held out.",
                f"Leave one of them out, for example {inputs.titles[second]}.",
            )


def independent(
    counts: sparse.csr_matrix, coords: NDArray[np.float64], genes: NDArray[np.str_], *, counted: bool = True
) -> NDArray[np.bool_]:
    """Spots (n,) of which no two repeat each other, the deepest first; values that are not ``counted`` must be equal."""
    pairs = equal_rows(counts, genes)
    if counted:
        pairs = np.concatenate([pairs, sharing(profiles(counts), coords)])
    if not len(pairs):
        return np.ones(counts.shape[0], dtype=bool)
    depth = np.asarray(abs(counts).sum(1)).ravel()
    rank = np.empty(len(depth), np.int64)
    rank[np.argsort(-depth, kind="stable")] = np.arange(len(depth))
    return _unrelated(pairs, rank)


def equal_rows(counts: sparse.csr_matrix, genes: NDArray[np.str_]) -> NDArray[np.int64]:
    """Pairs (p, 2) of rows with equal values, and not too few of them: all equal rows are linked to the first of them."""
    found = row_keys(counts, genes)
    order = np.argsort(found, kind="stable")
    order = order[np.diff(counts.indptr)[order] >= TELLING]
    same = found[order[1:]] == found[order[:-1]]
    first = np.maximum.accumulate(np.where(np.append(True, ~same), np.arange(len(order)), 0))[1:]
    return np.stack([order[first[same]], order[1:][same]], axis=1)


def profiles(counts: sparse.csr_matrix) -> NDArray[np.float32]:
    """Counts (n, g) of the genes that have most."""
    total = np.asarray(counts.sum(axis=0)).ravel()
    genes = np.sort(np.argsort(-total, kind="stable")[:GENES])
    return counts[:, genes].toarray().astype(np.float32)


def sharing(x: NDArray[np.float32], coords: NDArray[np.float64]) -> NDArray[np.int64]:
    """Pairs (p, 2) of spots with counts (n, g) that are more alike than two measurements of the same tissue can be."""
    pairs = [_neighbours(KDTree(coords).query(coords, k=min(NEAR + 1, len(coords)))[1])]
    if len(x) <= SEARCHED:
        pairs.append(_neighbours(_most_similar(x)))
    return _alike(x, np.unique(np.concatenate(pairs), axis=0))


def _alike(x: NDArray[np.float32], found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the pairs (p, 2) that share counts (n, g)."""
    parts = np.split(found, np.arange(CHUNK, len(found), CHUNK))
    below, share = (
        np.concatenate(one) for one in zip(*(_difference(x, part) for part in parts), strict=True)
    )
    chance = np.sort(ndtr(-below))
    # Benjamini and Hochberg: controls the false discovery rate over the pairs
    passed = np.flatnonzero(chance <= FALSE * np.arange(1, len(chance) + 1) / len(chance))
    limit = chance[passed[-1]] if len(passed) else -1.0
    return found[(ndtr(-below) <= limit) & (share < SHARE)]


def _difference(x: NDArray[np.float32], pairs: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
    """How far the two of each pair (p, 2) differ less than independent counts of equal rates would, (p,) each.

    In standard deviations below the expected difference, and as a share of it.

    Of the t counts that two independent spots have in a gene, each falls to the first with the probability p that its depth
    gives, if the rates are equal. The squared deviation over t p (1 - p) then has mean 1 and variance
    2 + (1 - 6 p (1 - p)) / (t p (1 - p)); if rates differ, it is larger. Less is possible only if counts are shared.
    """
    first, second = (x[side].astype(np.float64) for side in pairs.T)
    depth = first.sum(1), second.sum(1)
    p = (depth[0] / np.maximum(depth[0] + depth[1], 1))[:, None]
    total = first + second
    seen, noise = total > 0, np.maximum(total * p * (1 - p), 1e-9)
    difference = np.where(seen, np.square(first - p * total) / noise, 0).sum(1)
    variance = np.where(seen, 2 + (1 - 6 * p * (1 - p)) / noise, 0).sum(1)
    expected = seen.sum(1)
    below = (expected - difference) / np.sqrt(np.maximum(variance, 1e-9))
    return below, difference / np.maximum(expected, 1)


def _most_similar(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Each spot of (n, g) and those whose standardised profiles correlate most with its own."""
    z = _standardised(x)
    k = min(SIMILAR + 1, len(z))
    found = []
    for start in range(0, len(z), ROWS):
        likeness = z[start : start + ROWS] @ z.T
        some = np.arange(len(likeness))
        likeness[some, start + some] = np.inf
        best = np.argpartition(-likeness, k - 1, axis=1)[:, :k]
        found.append(np.concatenate([(start + some)[:, None], best], axis=1))
    return np.concatenate(found)


def _standardised(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-normalised profiles (n, g), each gene standardised, then each profile of length one."""
    z = np.log1p(x / np.maximum(x.sum(1, keepdims=True), 1) * np.median(x.sum(1)))
    z = (z - z.mean(0)) / np.maximum(z.std(0), 1e-6)
    found: NDArray[np.float32] = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-6)
    return found


def _neighbours(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs (p, 2), the lower first, of each row's own number and its neighbours (n, k)."""
    pairs = np.stack([np.repeat(np.arange(len(found)), found.shape[1]), found.ravel()], axis=1)
    return np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)


def _unrelated(pairs: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which (n,) to keep so that no pair (p, 2) is kept whole, those of lowest rank (n,) first."""
    better = np.take_along_axis(pairs, np.argsort(rank[pairs], axis=1), axis=1)
    kept, open_pairs = np.ones(len(rank), dtype=bool), better
    while len(open_pairs):  # the better of a pair stays, unless it is itself the worse of another
        stays = np.setdiff1d(open_pairs[:, 0], open_pairs[:, 1])
        kept[open_pairs[np.isin(open_pairs[:, 0], stays), 1]] = False
        open_pairs = open_pairs[kept[open_pairs].all(axis=1) & ~np.isin(open_pairs[:, 0], stays)]
    return kept
