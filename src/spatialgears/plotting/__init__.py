"""Figures, public as ``sg.pl``: each takes ``ax``, returns Axes, and never shows a window."""

from spatialgears.plotting.analysis import (
    marker_enrichment,
    marker_map,
    registration,
    spatial_domains,
    spatial_expression,
    spots,
)
from spatialgears.plotting.diagnostics import calibration_error, coverage, distortion, edge_roc, local_rmse
from spatialgears.plotting.maps import embedding_before_after, reconstruction, truth_vs_prediction
from spatialgears.plotting.scores import mixing, moran_agreement, neighbors_by_type
from spatialgears.plotting.training import training_curves

__all__ = [
    "calibration_error",
    "coverage",
    "distortion",
    "edge_roc",
    "embedding_before_after",
    "local_rmse",
    "marker_enrichment",
    "marker_map",
    "mixing",
    "moran_agreement",
    "neighbors_by_type",
    "reconstruction",
    "registration",
    "spatial_domains",
    "spatial_expression",
    "spots",
    "training_curves",
    "truth_vs_prediction",
]
