"""Compare cells given to a fitted model with its slides, as was done for the cells of the fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.config import Config
from spatialgears.validate.agreement import MANY, SlideExpression
from spatialgears.validate.coexpression import Correlations
from spatialgears.validate.copies import fingerprints, warn_own_spots
from spatialgears.validate.counts import Form, empty_rows, form_of
from spatialgears.validate.order import set_key


@dataclass(frozen=True, eq=False)
class FitRecord:
    """What a model keeps of its inputs, to compare later cells with."""

    slides: SlideExpression  # mean expression and correlations of the model's genes
    spots: NDArray[np.float32]  # (n,) fingerprints of the slides' spots
    cells: NDArray[np.float64]  # (G,) sums over the cells of the fit
    key: np.int64  # a hash of these cells, by which they are recognised: their warnings were given at the fit

    @classmethod
    def of(
        cls,
        slides: Sequence[sparse.csr_matrix],
        cells: sparse.csr_matrix,
        *,
        forms: Sequence[Form],
        raw: bool,
    ) -> FitRecord:
        """Of slides (n_i, G) and cells (N, G) on the model's genes, none of them empty."""
        spots = np.concatenate([fingerprints(slide) for slide in slides])
        expression = SlideExpression.of(slides, cells, forms=forms, raw=raw)
        sums = np.asarray(cells.sum(axis=0, dtype=np.float64)).ravel()
        return cls(expression, spots[~np.isnan(spots)], sums, set_key(cells))

    def are_of_the_fit(self, cells: sparse.csr_matrix) -> bool:
        """Whether cells (N, G) are those that the model was fitted on."""
        return bool(set_key(cells) == self.key)

    def warnings(
        self,
        cells: sparse.csr_matrix,
        config: Config,
        *,
        missing: NDArray[np.bool_],
        raw: bool,
        notes: Sequence[str] = (),
    ) -> list[str]:
        """Warnings about cells (N, G) other than those of the fit: ``notes``, copies of spots, and poor agreement."""
        own = warn_own_spots(fingerprints(cells), [self.spots], ["the model's slides", "the cells"])
        found = [*notes, *own]
        shown = cells[np.flatnonzero(~empty_rows(cells))]
        if shown.shape[0] < MANY:  # a few cells need not look like their tissue
            return found
        agreement = self.slides.compare(shown, form=form_of(shown), raw=raw, missing=missing)
        return found + agreement.warnings(config)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The numbers, by name."""
        arrays: dict[str, NDArray[Any]] = {
            "genes": self.slides.genes,
            "correlations": self.slides.correlations.values.astype(np.float32),
            "reliability": np.array(self.slides.correlations.reliability),
            "spots": self.spots,
            "cells": self.cells,
            "key": np.array(self.key),
        }
        return arrays if self.slides.means is None else arrays | {"means": self.slides.means}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> FitRecord:
        """From what :meth:`arrays` gave."""
        correlations = Correlations(arrays["correlations"], float(arrays["reliability"]))
        slides = SlideExpression(arrays["genes"], correlations, arrays.get("means"))
        return cls(slides, arrays["spots"], arrays["cells"], np.int64(arrays["key"]))
