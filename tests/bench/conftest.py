from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from anndata import AnnData

from spatialgears.bench.methods import Method

FAKES = Path(__file__).with_name("fakes.py")


def _fake(
    name: str, *, kind: str = "other", seeded: bool = True, sees_truth: bool = False, **options
) -> Method:
    return Method(name, kind, f"{FAKES}:{name}", options, seeded=seeded, sees_truth=sees_truth)


def _plane(n: int, seed: int = 0) -> AnnData:
    rng = np.random.default_rng(seed)
    places = rng.integers(0, 100, size=(n, 2))
    counts = np.column_stack([places, rng.poisson(3.0, size=(n, 6))]).astype(np.float32)
    adata = AnnData(sp.csr_matrix(counts), obsm={"spatial": places.astype(float)})
    adata.obs_names = [f"{x}x{y}_{i}" for i, (x, y) in enumerate(places)]
    adata.obs["kind"] = np.where(places[:, 0] > 50, "right", "left")
    return adata


@pytest.fixture(scope="session")
def fake() -> Callable[..., Method]:
    """A method of fakes.py by name, with options."""
    return _fake


@pytest.fixture(scope="session")
def plane() -> Callable[..., AnnData]:
    """Cells whose first two genes, and names, say where they are."""
    return _plane
