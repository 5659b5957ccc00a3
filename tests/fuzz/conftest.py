"""A tiny tissue, and every way we know to spoil one."""

from __future__ import annotations

import re
import string
import warnings
from collections.abc import Callable

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from spatialgears.config import Config
from spatialgears.errors import InputError

Spoil = Callable[[ad.AnnData, np.random.Generator], ad.AnnData]
HOSTILE = [
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "a\nb",
    "=cmd|' /C calc'!A0",
    "\u202eevil",
    "a\x00b",
    "",
    " ",
    "NaN",
    "'; DROP TABLE cells; --",
    "💥" * 50,
    "é",
    "e\u0301",
    "x" * 5000,
    "${HOME}",
    "{0}",
    "%s",
]
SPOILS: dict[str, Spoil] = {}


def spoil(function: Spoil) -> Spoil:
    SPOILS[function.__name__] = function
    return function


def tiny(n: int, seed: int, *, places: bool) -> ad.AnnData:
    """Counts of 30 genes, most of which follow a place."""
    rng = np.random.default_rng(seed)
    xy = rng.uniform(-1, 1, (n, 2))
    direction = np.random.default_rng(0).normal(size=(2, 30))
    adata = ad.AnnData(sparse.csr_matrix(rng.poisson(np.exp(1 + xy @ direction)).astype(np.float32)))
    adata.var_names = [f"GENE{i}" for i in range(30)]
    adata.obs_names = [f"o{i}" for i in range(n)]
    adata.obs["kind"] = pd.Categorical(np.where(xy[:, 0] > 0, "right", "left"))
    if places:
        adata.obsm["spatial"] = 100 * xy
    return adata


def dense(adata: ad.AnnData) -> np.ndarray:
    x = adata.X
    return np.array(x.toarray() if sparse.issparse(x) else x, dtype=np.float64)


def with_x(adata: ad.AnnData, x) -> ad.AnnData:
    return ad.AnnData(x, obs=adata.obs, var=adata.var, obsm=dict(adata.obsm))


# values


@spoil
def dtype(adata, rng):
    kinds = ["float16", "float32", "float64", "int8", "int64", "uint16", "bool", "complex64", "uint64"]
    return with_x(adata, dense(adata).astype(rng.choice(kinds)))


@spoil
def sparse_dtype(adata, rng):
    kinds = ["float64", "int32", "int64", "bool", "uint8"]
    return with_x(adata, sparse.csr_matrix(dense(adata).astype(rng.choice(kinds))))


@spoil
def objects(adata, rng):
    x = dense(adata).astype(object)
    fill = [None, "many", "3", b"4", [1], {}, 2.5, np.float32(1), pd.NA]
    x[0, 0] = fill[rng.integers(len(fill))]
    return with_x(adata, x)


@spoil
def strings(adata, rng):
    return with_x(adata, dense(adata).astype(int).astype(str))


@spoil
def values(adata, rng):
    x = dense(adata)
    odd = [np.nan, np.inf, -np.inf, -1, 1e300, 1e38, 1e20, 2**40, 1e-300, 0.5, -0.0, 5e-324]
    where = rng.random(x.shape) < rng.choice([0.002, 0.2, 1.0])
    where.flat[0] = True
    x[where] = odd[rng.integers(len(odd))]
    return with_x(adata, x if rng.random() < 0.5 else sparse.csr_matrix(x))


@spoil
def huge_everywhere(adata, rng):
    return with_x(adata, sparse.csr_matrix(dense(adata) * rng.choice([1e6, 1e9, 1e15, 1e30])))


@spoil
def silent_genes(adata, rng):
    x = dense(adata)
    x[:, rng.random(x.shape[1]) < rng.choice([0.1, 0.9, 1.0])] = 0
    return with_x(adata, sparse.csr_matrix(x))


@spoil
def silent_rows(adata, rng):
    x = dense(adata)
    x[rng.random(len(x)) < rng.choice([0.1, 0.5, 0.95, 1.0])] = 0
    return with_x(adata, sparse.csr_matrix(x))


@spoil
def constant(adata, rng):
    return with_x(adata, np.full(adata.shape, float(rng.choice([0, 1, 7]))))


@spoil
def same_rows(adata, rng):
    return with_x(adata, np.repeat(dense(adata)[:1], adata.n_obs, axis=0))


@spoil
def logs(adata, rng):
    return with_x(adata, np.log1p(dense(adata)))


@spoil
def scaled(adata, rng):
    x = dense(adata)
    return with_x(adata, (x - x.mean(0)) / (x.std(0) + 1e-9))


# formats


@spoil
def formats(adata, rng):
    kinds = ["csr", "csc"]
    kind = kinds[rng.integers(2)]
    make = [getattr(sparse, f"{kind}_matrix"), getattr(sparse, f"{kind}_array")][rng.integers(2)]
    return with_x(adata, make(dense(adata)))


@spoil
def coo(adata, rng):
    """Only a layer can hold it, where it can at all."""
    adata = with_x(adata, adata.X)
    adata.layers["counts"] = sparse.coo_matrix(dense(adata))
    return adata


@spoil
def not_canonical(adata, rng):
    """Values split in two stored entries, unsorted, with stored zeros."""
    x = dense(adata).astype(np.float32)
    rows, columns = (np.r_[i, i] for i in np.nonzero(x + 1))
    half = x.ravel()
    data = np.r_[half - 1, np.ones_like(half)]
    order = np.lexsort((rng.random(len(rows)), rows))
    counts = np.bincount(rows, minlength=len(x))
    made = sparse.csr_matrix((data[order], columns[order], np.r_[0, np.cumsum(counts)]), shape=x.shape)
    return with_x(adata, made)


@spoil
def fortran(adata, rng):
    return with_x(adata, np.asfortranarray(dense(adata)))


@spoil
def view(adata, rng):
    return adata[rng.permutation(adata.n_obs)][:, rng.permutation(adata.n_vars)]


@spoil
def subset(adata, rng):
    return adata[: rng.integers(0, adata.n_obs + 1), : rng.integers(0, adata.n_vars + 1)]


@spoil
def no_x(adata, rng):
    bare = ad.AnnData(obs=adata.obs, var=adata.var, obsm=dict(adata.obsm))
    if rng.random() < 0.5:
        bare.layers["counts"] = sparse.csr_matrix(dense(adata))
    return bare


@spoil
def layers(adata, rng):
    adata = with_x(adata, np.log1p(dense(adata)))
    adata.layers["counts"] = sparse.csr_matrix(np.round(np.expm1(dense(adata))))
    return adata


@spoil
def raw(adata, rng):
    kept = adata.copy()
    adata = kept[:, : rng.integers(1, kept.n_vars + 1)].copy()
    adata.raw = kept
    return adata


@spoil
def transposed(adata, rng):
    turned = adata.T.copy()
    turned.obsm["spatial"] = rng.normal(size=(turned.n_obs, 2))
    return turned


# names


@spoil
def hostile_genes(adata, rng):
    names = adata.var_names.to_numpy(object).copy()
    chosen = rng.permutation(len(HOSTILE))[: len(names)]
    names[: len(chosen)] = np.array(HOSTILE, object)[chosen]
    return _named(adata, var=names)


@spoil
def hostile_observations(adata, rng):
    names = adata.obs_names.to_numpy(object).copy()
    chosen = rng.permutation(len(HOSTILE))[: len(names)]
    names[: len(chosen)] = np.array(HOSTILE, object)[chosen]
    return _named(adata, obs=names)


@spoil
def repeated_genes(adata, rng):
    names = adata.var_names.to_numpy(object).copy()
    if len(names):
        names[: rng.integers(1, len(names) + 1)] = names[0]
    return _named(adata, var=names)


@spoil
def repeated_observations(adata, rng):
    return _named(adata, obs=np.full(adata.n_obs, "same", object))


@spoil
def other_genes(adata, rng):
    change = [str.lower, lambda g: f"{g}.{rng.integers(9)}", lambda g: str(hash(g)), lambda g: f"mm10_{g}"]
    change = change[rng.integers(len(change))]
    return _named(adata, var=np.array([change(g) for g in adata.var_names], object))


@spoil
def random_names(adata, rng):
    letters = list(string.printable + "äß🦠\u200b\u0000")
    names = ["".join(rng.choice(letters, rng.integers(0, 9))) for _ in range(adata.n_vars)]
    return _named(adata, var=np.array(names, object))


@spoil
def categorical_names(adata, rng):
    adata = adata.copy()
    adata.var.index = pd.CategoricalIndex(adata.var_names)
    return adata


def _named(adata, *, obs=None, var=None):
    adata = adata.copy()
    if var is not None:
        adata.var_names = pd.Index(var, dtype=object)
    if obs is not None:
        adata.obs_names = pd.Index(obs, dtype=object)
    return adata


# annotation


@spoil
def columns(adata, rng):
    """Categories that are not used, missing, numeric, or named like ours."""
    adata = adata.copy()
    n = adata.n_obs
    adata.obs["unused"] = pd.Categorical(["a"] * n, categories=["a", "b", "<i>c"])
    adata.obs["missing"] = pd.Categorical([None] * n, categories=["x"])
    adata.obs["numbers"] = pd.Categorical(rng.integers(0, 3, n))
    adata.obs["half"] = np.where(rng.random(n) < 0.5, np.nan, 1.0)
    adata.obs["gears_uncertainty"] = "mine"
    adata.obs["flag"] = pd.array([True, None] * (n // 2) + [False] * (n % 2), dtype="boolean")
    adata.uns["gears"] = {"mine": 1}
    adata.obsm["X_gears"] = rng.normal(size=(n, 3))
    return adata


# places


@spoil
def no_places(adata, rng):
    adata = adata.copy()
    adata.obsm.pop("spatial", None)
    return adata


@spoil
def places(adata, rng):
    n = adata.n_obs
    line = np.c_[np.arange(n), 2 * np.arange(n)]
    xy = rng.normal(size=(n, 2))
    gap, far = xy.copy(), xy.copy()
    gap[:1], far[:1] = np.nan, np.inf
    options = [
        line,
        np.zeros((n, 2)),
        rng.integers(0, 2, (n, 2)),
        np.c_[xy, rng.normal(size=n)],
        np.c_[xy, np.zeros(n)],
        xy[:, :1],
        np.c_[xy, xy],
        gap,
        far,
        xy * 1e300,
        xy * 1e-300,
        xy * 1e30,
        xy + 1e15,
        xy.astype(np.float16),
        (100 * xy).astype(np.int16),
        (100 * xy).astype(np.uint64),
        xy.astype(complex),
        xy > 0,
        xy.astype(str),
        np.where(xy > 0, "a", "b"),
        xy.astype(object),
        xy[:, :0],
        xy[:, None],
        np.c_[np.arange(n), np.full(n, 1e-9) * rng.random(n)],
    ]
    return _placed(adata, options[rng.integers(len(options))])


@spoil
def framed_places(adata, rng):
    frame = pd.DataFrame(rng.normal(size=(adata.n_obs, 2)), index=adata.obs_names, columns=["x", "y"])
    if rng.random() < 0.5:
        frame["y"] = pd.Categorical(["a"] * adata.n_obs)
    return _placed(adata, frame)


@spoil
def sparse_places(adata, rng):
    return _placed(adata, sparse.csr_matrix(rng.normal(size=(adata.n_obs, 2))))


@spoil
def masked_places(adata, rng):
    return _placed(adata, np.ma.masked_less(rng.normal(size=(adata.n_obs, 2)), 0))


def _placed(adata, xy):
    adata = adata.copy()
    adata.obsm["spatial"] = xy
    return adata


def apply(names, adata, rng: np.random.Generator) -> ad.AnnData | None:
    """Spoil in turn; None where anndata itself does not make such an object."""
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                adata = SPOILS[name](adata, rng)
        except Exception:  # anndata, numpy or pandas refuse to make it
            return None
    return adata


def must_tell(error: InputError) -> None:
    """Demand that an error says what to do."""
    assert re.search(r"What to do: .*[a-z]{3}", str(error)), str(error)


@pytest.fixture(scope="session")
def spoils():
    return SPOILS, apply


@pytest.fixture(scope="session")
def make_tiny():
    return tiny


@pytest.fixture(scope="session")
def told():
    return must_tell


@pytest.fixture(scope="session")
def least_config() -> Config:
    """A model that is trained for a step or two."""
    return Config.from_dict(
        {
            "threads": 1,
            "expression": {"max_steps": 2, "embed_dim": 4},
            "supervision": {"n_min": 8, "n_max": 12},
            "geometry": {
                "steps": 2,
                "crossfit": 1,
                "slide_steps": 0,
                "refiner_steps": 1,
                "width": 4,
                "inducing": 2,
                "hidden": 4,
                "context_blocks": 1,
                "generator_blocks": 1,
                "denoiser_blocks": 1,
                "reference": 16,
                "batch_size": 2,
            },
            "assembly": {"steps": 1, "samples": 1, "spacing_cells": 20},
        }
    )


def pytest_generate_tests(metafunc):
    if "category" in metafunc.fixturenames:
        metafunc.parametrize("category", sorted(SPOILS))
