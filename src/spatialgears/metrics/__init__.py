"""Every metric of the paper's appendix and tables: arrays in, numbers out; knows nothing of models."""

from spatialgears.metrics.distances import least_squares_scale, pearson, scale_error, spearman, stress1
from spatialgears.metrics.distortion import distortion_matrix, morton_order
from spatialgears.metrics.distribution import swd, w1_knn
from spatialgears.metrics.edges import balanced_ap, edge_auc, edge_roc, shell_f1
from spatialgears.metrics.evaluate import evaluate
from spatialgears.metrics.mixing import ilisi, mixing, neighbour_entropy
from spatialgears.metrics.neighbourhoods import (
    cal_error,
    continuity,
    knn_distances,
    local_stress,
    lrmse,
    neighbourhood_radius,
    trustworthiness,
)
from spatialgears.metrics.points import canonical

__all__ = [
    "balanced_ap",
    "cal_error",
    "canonical",
    "continuity",
    "distortion_matrix",
    "edge_auc",
    "edge_roc",
    "evaluate",
    "ilisi",
    "knn_distances",
    "least_squares_scale",
    "local_stress",
    "lrmse",
    "mixing",
    "morton_order",
    "neighbour_entropy",
    "neighbourhood_radius",
    "pearson",
    "scale_error",
    "shell_f1",
    "spearman",
    "stress1",
    "swd",
    "trustworthiness",
    "w1_knn",
]
