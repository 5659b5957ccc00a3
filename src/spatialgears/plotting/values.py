"""What to draw: coordinates and colours, looked up in an AnnData, a Reconstruction or plain arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from spatialgears.errors import InputError
from spatialgears.text import listed, similar_names

if TYPE_CHECKING:
    from anndata import AnnData

UNIT, SLIDE_UNIT = "RMS radius of the slide", "units of the slide"
ALIASES = {"uncertainty": "gears_uncertainty", "outside": "gears_outside", "domain": "gears_domain"}
LABELS = {
    "gears_uncertainty": f"uncertainty: 90% radius ({UNIT})",
    "gears_radius50": f"50% radius ({UNIT})",
    "gears_outside": "outside what the slides support",
    "gears_domain": "domain",
}
NAMED_FROM = 0.5  # share of a domain's cells from which it is named after their type
_CALLS = dict.fromkeys(LABELS, "model.reconstruct(cells).to_adata(cells)") | {
    "gears_domain": "sg.tl.spatial_domains(cells)"
}


def coordinates(data: Any, basis: str = "X_gears") -> np.ndarray:
    """(n, 2) float64 places of an AnnData (``obsm[basis]``), a Reconstruction (``.coords``) or an array."""
    if hasattr(data, "obsm"):
        if basis not in data.obsm:
            raise InputError(
                f"obsm has no {basis!r}; it has {listed(data.obsm)}.",
                "Write places with Reconstruction.to_adata(adata), or name another key with basis=.",
            )
        data = data.obsm[basis]
    places = np.asarray(getattr(data, "coords", data), dtype=np.float64)
    if places.ndim != 2 or places.shape[1] < 2:
        raise InputError(f"Expected coordinates of shape (n, 2); found {places.shape}.")
    return places[:, :2]


def pair(coords: Any, truth: Any) -> tuple[np.ndarray, np.ndarray]:
    """Predicted and true places (``obsm["spatial"]`` of an AnnData) of the same cells, each (n, 2).

    Cells that both name are matched by their names, as :func:`color_values` does; otherwise by order.
    """
    predicted, true = coordinates(coords), coordinates(truth, "spatial")
    if len(predicted) != len(true):
        raise InputError(
            f"There are {len(predicted)} predicted places and {len(true)} true ones.",
            "Give the same cells, in the same order.",
        )
    if hasattr(coords, "obs_names") and hasattr(truth, "obs_names"):
        names, others = pd.Index(coords.obs_names), pd.Index(truth.obs_names)
        if not names.equals(others) and others.is_unique and set(names) == set(others):
            true = true[others.get_indexer(names)]
    return predicted, true


def turned_onto(coords: np.ndarray, truth: np.ndarray, *, scale: bool) -> np.ndarray:
    """The layout shifted, turned or mirrored, and scaled if wanted, to lie best on the truth (Procrustes)."""
    x, centre = coords - coords.mean(axis=0), truth.mean(axis=0)
    u, s, vt = np.linalg.svd(x.T @ (truth - centre))
    factor = s.sum() / (np.square(x).sum() or 1.0) if scale else 1.0
    return factor * x @ u @ vt + centre


def color_values(data: Any, color: Any, *, layer: str | None = None) -> tuple[pd.Series | None, str]:
    """Values to colour by, one per cell, and the words for the legend.

    ``color`` is the name of an obs column or a gene, "uncertainty", "domain", or the values themselves.
    """
    if color is None:
        return None, ""
    if not isinstance(color, str):
        values = color if isinstance(color, pd.Series) else pd.Series(_flat(color))
        n = data.n_obs if hasattr(data, "obsm") else len(coordinates(data))
        if len(values) != n:
            raise InputError(
                f"There are {n} cells but {len(values)} values to colour by.", "Give one value per cell."
            )
        name = str(getattr(color, "name", None) or "")
        if hasattr(data, "obsm") and not values.index.equals(data.obs_names):
            of_cells = values.index.is_unique and values.index.isin(data.obs_names).all()
            values = values.reindex(data.obs_names) if of_cells else values
        return values, name
    if hasattr(data, "obsm"):
        return _from_adata(data, color, layer)
    attribute = getattr(data, color, None) if hasattr(data, "coords") else None
    if attribute is None or np.ndim(attribute) != 1:
        raise InputError(
            f"{type(data).__name__} has no values called {color!r} to colour by.",
            "Give the values themselves, or an AnnData that holds them.",
        )
    return pd.Series(np.asarray(attribute)), LABELS.get(f"gears_{color}", color)


def domain_names(table: pd.DataFrame) -> list[str]:
    """Each domain's number, with the cell type of most of its cells if that is at least half of them.

    ``table`` is what :func:`spatialgears.tl.spatial_domains` writes; without types the numbers stand alone.
    """
    if "majority" not in table:
        return [str(domain) for domain in table.index]
    return [
        str(domain)
        if not row["majority"]
        else f"{domain}: {row['majority']} ({row['purity']:.0%})"
        if row["purity"] >= NAMED_FROM
        else f"{domain}: mixed types"
        for domain, row in table.iterrows()
    ]


def are_names(data: Any, color: Any) -> bool:
    """Whether ``color`` lists several things to colour by, and is not one label per cell."""
    if not isinstance(color, (list, tuple)) or not color or not all(isinstance(one, str) for one in color):
        return False
    n = data.n_obs if hasattr(data, "obsm") else len(coordinates(data))
    if len(color) != n:
        return True
    known = {*data.obs.columns, *data.var_names, *ALIASES} if hasattr(data, "obsm") else set(ALIASES)
    return set(color) <= known


def slot(adata: AnnData, key: str, call: str) -> dict[str, Any]:
    """What an analysis left in ``uns[key]``, or an error with the call that writes it."""
    if key not in adata.uns:
        raise InputError(f"uns has no {key!r}.", f"Run {call} first.")
    return adata.uns[key]


def _from_adata(adata: AnnData, color: str, layer: str | None) -> tuple[pd.Series, str]:
    for column in (color, ALIASES.get(color, color)):
        if column in adata.obs:
            values = adata.obs[column]
            if "table" in adata.uns.get(column, ()):  # domains, as the report names them
                table = adata.uns[column]["table"]
                names = dict(zip(map(str, table.index), domain_names(table), strict=True))
                values = pd.Series(pd.Categorical(values).rename_categories(names), adata.obs_names)
            return values, LABELS.get(column, column)
    (found,) = np.nonzero(np.asarray(adata.var_names) == color)
    if len(found) == 1:
        if layer is not None and layer not in adata.layers:
            raise InputError(f"There is no layer {layer!r}; there are {listed(adata.layers)}.")
        column = adata[:, found].X if layer is None else adata[:, found].layers[layer]
        return pd.Series(_flat(column), index=adata.obs_names), f"{color} ({layer or 'X'})"
    if len(found) > 1:
        raise InputError(
            f"{len(found)} genes are called {color!r}.", "Run adata.var_names_make_unique() first."
        )
    if call := _CALLS.get(ALIASES.get(color, color)):
        raise InputError(f"obs has no {ALIASES.get(color, color)!r}.", f"Run {call} first.")
    near = similar_names(color, [*adata.obs.columns, *adata.var_names])
    raise InputError(
        f"No obs column and no gene is called {color!r}. Columns: {listed(adata.obs.columns)}. "
        f"Genes: {listed(adata.var_names)}.",
        f"Did you mean {' or '.join(map(repr, near))}?" if near else "Choose one of those.",
    )


def _flat(values: Any) -> Any:
    if sparse.issparse(values):
        values = values.toarray()
    return values if hasattr(values, "dtype") and np.ndim(values) == 1 else np.asarray(values).ravel()
