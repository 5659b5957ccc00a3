"""Data to try and measure with: a tissue simulator, pseudo-Visium spots, a registry of public sets."""

from __future__ import annotations

from spatialgears.datasets.registry import REGISTRY, load
from spatialgears.datasets.simulate import simulate_tissue
from spatialgears.datasets.spots import pseudo_visium, same_spots
from spatialgears.datasets.tissue import Tissue

__all__ = ["REGISTRY", "Tissue", "load", "pseudo_visium", "same_spots", "simulate_tissue"]
