"""Spatial domains of a reconstruction: communities of its neighbour graph, named, and tested against noise."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse, stats

from spatialgears.analysis import lookup
from spatialgears.errors import InputError
from spatialgears.expression.normalise import STD_FLOOR
from spatialgears.runtime.seeds import child_seed, numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

N_GENES, N_COMPONENTS, FIT_CELLS = 1000, 20, 10_000
NOISE_LEVEL = 0.05


def spatial_domains(
    adata: AnnData,
    *,
    labels: str | None = None,
    n_neighbors: int = 15,
    resolution: float = 0.2,
    n_shuffles: int = 100,
    use_rep: str | None = None,
    layer: str | None = None,
    basis: str = "X_gears",
    outside: str | None = lookup.OUTSIDE,
    key_added: str = "gears_domain",
    seed: int = 0,
    copy: bool = False,
) -> AnnData | None:
    """Divide the cells into spatial domains, name them by cell type, and say which are only noise (section 4).

    Leiden finds communities in any layout, also in one without structure. A domain is *noise* if its cells could as well have
    been drawn at random. It is not if, compared with coordinates shuffled among the cells, its mean expression differs more
    from that of all cells, or its cells are more similar to each other.

    Parameters
    ----------
    adata
        Cells with coordinates in ``obsm[basis]``.
    labels
        Column of ``obs`` with cell types, to name each domain by its majority. They play no part in finding it.
    n_neighbors
        Neighbours of each cell in the graph on the places.
    resolution
        Resolution of Leiden (modularity); higher gives more and smaller domains.
    n_shuffles
        Shuffles of the places for the comparison; 0 leaves it out.
    use_rep
        Key of ``obsm`` with an expression embedding for the comparison. By default, 20 principal components of
        the standardised most variable genes of ``X``.
    layer
        Where expression is read; default ``X``. Counts are normalised and logged.
    basis
        Key of the coordinates in ``obsm``.
    outside
        Column of ``obs`` that marks cells outside the slides' range: they get no domain.
        None: all cells count. Without the column ``"gears_outside"``, all do.
    key_added
        Name of the slots written.
    seed
        The same seed gives the same domains.
    copy
        Write into a copy and return it.

    Returns
    -------
    ``None``, or the copy. Writes

    ``obs[key_added]``
        The domain of each cell, "0" the largest; missing for cells left out.
    ``obs[key_added + "_noise"]``
        Whether the cell lies in a domain that is only noise (if ``n_shuffles``).
    ``uns[key_added]["table"]``
        One row per domain: ``n_cells``; with labels ``majority``, ``purity`` (its share in the domain) and
        ``background`` (its share among all cells); with shuffles ``distinctness`` (share of the variance of
        expression that lies between the domain's mean and that of all cells), ``pvalue`` (an approximation by a
        gamma or normal law with the mean and variance of the shuffles), ``pvalue_adj`` (Benjamini-Hochberg) and
        ``noise`` (``pvalue_adj`` above 0.05).
    ``uns[key_added]["params"]``
        The options.

    Notes
    -----
    Coordinates come from expression here. That a domain is not noise therefore says that its cells belong together, not that
    they lie in the right position. P below ``1 / (n_shuffles + 1)`` is extrapolated: report it as "smaller than" that.
    Needs ``pip install "spatialgears[analysis]"``. Time and memory are linear in cells: 20 s for 100,000
    cells and 1,000 genes on one core.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=500, n_genes=60, spots=60)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> sg.tl.spatial_domains(cells, labels="cell_type")
    >>> table = cells.uns["gears_domain"]["table"]
    >>> bool(table["noise"].any()), bool((table["purity"] > table["background"]).all())
    (False, True)
    """
    if n_neighbors < 1 or resolution <= 0 or n_shuffles < 0:
        raise InputError(
            f"n_neighbors must be at least 1, resolution positive and n_shuffles not negative; found {n_neighbors}, "
            f"{resolution} and {n_shuffles}."
        )
    ours = "table" in adata.uns.get(key_added, ()) or key_added.startswith("gears_")
    if key_added in adata.obs and not ours:
        raise InputError(
            f"obs[{key_added!r}] is there already, and is not of domains.", "Choose another key_added."
        )
    kept = lookup.counted(adata, outside)
    coords = lookup.places(adata, basis)[kept]
    named = None if labels is None else lookup.labels(adata, labels)[kept]
    embedding = _embedding(adata, use_rep, layer, kept, seed=seed) if n_shuffles else None
    domain = leiden(coords, n_neighbors=n_neighbors, resolution=resolution, seed=seed)
    table = pd.DataFrame({"n_cells": np.bincount(domain)}, index=[str(i) for i in range(domain.max() + 1)])
    if named is not None:
        table = table.join(majority(domain, named, table.index))
    if embedding is not None:
        table = table.join(compare(domain, embedding, table.index, n_shuffles=n_shuffles, seed=seed))
        logger.info("%d domains, %d of them only noise", len(table), int(table["noise"].sum()))
    adata = lookup.target(adata, copy)
    codes = np.full(adata.n_obs, -1)
    codes[kept] = domain
    adata.obs[key_added] = pd.Categorical.from_codes(codes, table.index)
    if embedding is not None:
        adata.obs[f"{key_added}_noise"] = np.append(table["noise"], False)[codes]  # the last is for no domain
    elif f"{key_added}_noise" in adata.obs:  # of domains that were
        del adata.obs[f"{key_added}_noise"]
    params = {"n_neighbors": n_neighbors, "resolution": resolution, "n_shuffles": n_shuffles, "basis": basis}
    params |= {"labels": labels or "", "seed": seed, "n_outside": int((~kept).sum())}
    adata.uns[key_added] = {"table": table, "params": params}
    return adata if copy else None


def leiden(
    coords: NDArray[np.float64], *, n_neighbors: int, resolution: float, seed: int
) -> NDArray[np.int64]:
    """Leiden community (n,) of each point in the kNN graph of the points, the largest first."""
    leidenalg, igraph = lookup.require("leidenalg"), lookup.require("igraph")
    graph = lookup.neighbor_matrix(coords, min(n_neighbors, len(coords) - 1))
    edges = sparse.triu(graph.maximum(graph.T), k=1, format="coo")
    partition = leidenalg.find_partition(
        igraph.Graph(n=len(coords), edges=np.column_stack([edges.row, edges.col])),
        leidenalg.RBConfigurationVertexPartition,
        resolution_parameter=resolution,
        n_iterations=2,
        seed=child_seed(seed, "leiden") % 2**31,
    )
    member = np.asarray(partition.membership, dtype=np.int64)
    rank = np.empty(member.max() + 1, np.int64)
    rank[np.argsort(-np.bincount(member), kind="stable")] = np.arange(len(rank))
    return rank[member]


def components(x: sparse.csr_matrix, *, seed: int) -> NDArray[np.float64]:
    """Principal components (n, 20) of the standardised most variable genes; axes are fitted on 10,000 cells."""
    mean = np.asarray(x.mean(0)).ravel()
    std = np.sqrt(np.maximum(np.asarray(x.multiply(x).mean(0)).ravel() - mean**2, 0))
    genes = np.argsort(-std, kind="stable")[:N_GENES]
    genes = genes[std[genes] > 0]
    if not len(genes):
        raise InputError(
            "No gene varies over the cells.", "Name an embedding with use_rep=, or n_shuffles=0."
        )
    x, mean, scale = x[:, genes], mean[genes], 1 / (std[genes] + STD_FLOOR)
    some = numpy_rng(seed, "components").permutation(x.shape[0])[:FIT_CELLS]
    part = (x[np.sort(some)].toarray().astype(np.float64) - mean) * scale
    _, axes = np.linalg.eigh(part.T @ part)
    axes = scale[:, None] * axes[:, ::-1][:, :N_COMPONENTS]  # (genes, components)
    return np.asarray(x @ axes - mean @ axes, dtype=np.float64)


def _embedding(
    adata: AnnData, use_rep: str | None, layer: str | None, kept: NDArray[np.bool_], *, seed: int
) -> NDArray[np.float64]:
    if use_rep is None:
        return components(lookup.log_expression(adata, layer=layer)[kept], seed=seed)
    if use_rep not in adata.obsm:
        raise InputError(
            f"There is no obsm[{use_rep!r}]; obsm has {lookup.listed(adata.obsm)}.", "Name one of these."
        )
    embedding = np.array(adata.obsm[use_rep], dtype=np.float64)[kept]
    if not np.isfinite(embedding).all():
        raise InputError(f"obsm[{use_rep!r}] has values that are not finite.", "Leave these cells out.")
    return embedding - embedding.mean(0)


def majority(domain: NDArray[np.int64], named: pd.Categorical, index: pd.Index) -> pd.DataFrame:
    """Per domain the commonest label, its share there, and its share among all cells."""
    known = named.codes >= 0
    counts = np.zeros((len(index), len(named.categories)))
    np.add.at(counts, (domain[known], named.codes[known]), 1)
    top, labelled = counts.argmax(1), np.maximum(counts.sum(1), 1)
    return pd.DataFrame(
        {
            "majority": np.where(counts.any(1), np.asarray(named.categories)[top], ""),
            "purity": counts.max(1) / labelled,
            "background": (counts.sum(0) / counts.sum())[top],
        },
        index=index,
    )


def compare(
    domain: NDArray[np.int64], embedding: NDArray[np.float64], index: pd.Index, *, n_shuffles: int, seed: int
) -> pd.DataFrame:
    """How far each domain stands out from the shuffles: by its mean, or by how similar its cells are.

    The shuffles give mean and variance of both statistics. A squared mean follows a gamma law closely, the mean
    square of many cells a normal one; so P can be smaller than one in the number of shuffles.
    """
    x = embedding - embedding.mean(0)
    total = np.square(x).sum(1).mean()
    if total == 0:
        raise InputError(
            "The expression embedding is constant.", "Name another with use_rep=, or n_shuffles=0."
        )
    square = np.square(x).sum(1)  # (n,)
    size = np.bincount(domain)
    # takes the mean of each domain
    member = sparse.csr_matrix((1 / size[domain], (domain, np.arange(len(x)))), (len(size), len(x)))

    def statistics(order: NDArray[np.int64] | slice) -> tuple[NDArray, NDArray]:
        between = np.square(member @ x[order]).sum(1) / total
        return between, (member @ square[order]) / total - between  # (domains,) each

    distinct, spread = statistics(slice(None))
    rng = numpy_rng(seed, "shuffles")
    shuffled = np.array([statistics(rng.permutation(len(x))) for _ in range(max(n_shuffles, 2))])  # (s, 2, d)
    mean, var = shuffled.mean(0), np.maximum(shuffled.var(0, ddof=1), 1e-24)
    by_mean = stats.gamma.sf(distinct, mean[0] ** 2 / var[0], scale=var[0] / np.maximum(mean[0], 1e-12))
    by_spread = stats.norm.cdf((spread - mean[1]) / np.sqrt(var[1]))
    pvalue = np.minimum(2 * np.minimum(by_mean, by_spread), 1)
    pvalue[size == len(x)] = 1.0  # a domain of all cells differs from none
    corrected = lookup.adjusted(pvalue)
    found = {
        "distinctness": distinct,
        "pvalue": pvalue,
        "pvalue_adj": corrected,
        "noise": corrected > NOISE_LEVEL,
    }
    return pd.DataFrame(found, index=index)
