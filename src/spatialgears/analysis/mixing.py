"""Mixing of slides and cohorts in embeddings: neighbour entropy, iLISI and a nearest-neighbour probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from spatialgears import metrics
from spatialgears.analysis import lookup
from spatialgears.errors import InputError
from spatialgears.expression.probe import balanced_probe
from spatialgears.runtime.seeds import numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData

PROBE_SIZE = 2000  # profiles of each side that the probe sees


def mixing(
    adata: AnnData,
    by: str | Sequence[str],
    *,
    basis: str | Sequence[str],
    k: int = 20,
    max_cells: int = 20_000,
    seed: int = 0,
) -> pd.DataFrame:
    """How well groups (slides, cohorts, spots and cells) mix in one or several embeddings (section 4).

    Parameters
    ----------
    adata
        All profiles together, for example ``anndata.concat([slide, cells])``.
    by
        Column or columns of ``obs`` with the groups.
    basis
        Key or keys of ``obsm`` with embeddings, for example before and after alignment.
    k
        Neighbours looked at.
    max_cells
        Of more profiles, a random part of this size is scored; the ``n`` of each row says how many were.
    seed
        Chooses that part.

    Returns
    -------
    pandas.DataFrame
        One row per embedding and column (index ``basis``, ``by``), nothing is written: ``neighbour_entropy`` and
        ``ilisi`` (0 separate, 1 ideal; groups of unequal size cannot reach 1), both ``_balanced`` (each group weighs
        the same, 1 is a perfect mixture whatever the sizes), ``probe`` (balanced accuracy of a k-nearest-neighbour
        vote that tells a group from the others, mean over groups: 0.5 cannot tell, 1 separate), ``n`` and
        ``n_groups``. :func:`spatialgears.pl.mixing` draws it, :func:`spatialgears.pl.embedding_before_after` the
        embeddings themselves.

    Notes
    -----
    All profiles count, also cells marked as outside what the slides support: that they do not mix is what is asked.
    Time grows with the square of ``max_cells`` at worst, and not with cells: 4 s.

    Examples
    --------
    >>> import anndata as ad, numpy as np, spatialgears as sg
    >>> adata = ad.AnnData(obs={"cohort": ["a", "b"] * 100})
    >>> adata.obsm["after"] = np.random.default_rng(0).normal(size=(200, 5))
    >>> adata.obsm["before"] = adata.obsm["after"] + 9 * (adata.obs["cohort"] == "a").to_numpy()[:, None]
    >>> table = sg.tl.mixing(adata, "cohort", basis=["before", "after"])
    >>> (table["neighbour_entropy"] > 0.9).tolist(), float(table.loc[("before", "cohort"), "probe"])
    ([False, True], 1.0)
    """
    columns, keys = ([names] if isinstance(names, str) else list(names) for names in (by, basis))
    for key in keys:
        if key not in adata.obsm:
            raise InputError(
                f"There is no obsm[{key!r}]; obsm has {lookup.listed(adata.obsm)}.", "Name one of these."
            )
    rows = {}
    for column in columns:
        groups = lookup.labels(adata, column)
        known = np.flatnonzero(groups.codes >= 0)
        if len(groups.categories) < 2:
            raise InputError(
                f"obs[{column!r}] has one group, {groups.categories[0]!r}: mixing needs two.",
                "Put slides and cells in one AnnData, for example with anndata.concat, and name the column.",
            )
        some = np.sort(numpy_rng(seed, "mixing").permutation(known)[:max_cells])
        for key in keys:
            rows[key, column] = _scores(np.asarray(adata.obsm[key])[some], groups.codes[some], k=k, seed=seed)
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(table.index, names=["basis", "by"])
    return table.astype({"n": int, "n_groups": int})


def _scores(x: NDArray, code: NDArray, *, k: int, seed: int) -> dict[str, float]:
    balanced = metrics.mixing(x, code, k=k, balanced=True)
    return {
        **metrics.mixing(x, code, k=k),
        **{f"{name}_balanced": value for name, value in balanced.items()},
        "probe": float(np.mean([_probe(x, code == group, k=k, seed=seed) for group in np.unique(code)])),
        "n": len(x),
        "n_groups": len(np.unique(code)),
    }


def _probe(x: NDArray, own: NDArray[np.bool_], *, k: int, seed: int) -> float:
    """Balanced accuracy of telling rows ``own`` from the others, on at most 2,000 of each."""
    rng = numpy_rng(seed, "probe")
    sides = [
        torch.from_numpy(x[rng.permutation(np.flatnonzero(rows))[:PROBE_SIZE]]).float()
        for rows in (own, ~own)
    ]
    return balanced_probe(*sides, k=k)
