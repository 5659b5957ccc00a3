"""How the metrics of :func:`spatialgears.metrics.evaluate` are worded for readers."""

from __future__ import annotations

# name: (title, whether higher is better, what it asks); the others of a row are listed under their own names
MAIN = {
    "spearman": ("Spearman", True, "Are near pairs near and far pairs far?"),
    "pearson": ("Pearson", True, "Do distances grow in proportion?"),
    "stress1": ("Stress-1", False, "How wrong are distances on the whole?"),
    "edge_auc": ("Edge AUC", True, "Are true neighbours closer than other pairs?"),
    "bap": ("Balanced AP", True, "The same, counting only confident neighbours"),
    "shell_f1": ("Shell F1", True, "Is each pair in the right ring of distance?"),
    "trust": ("Trustworthiness", True, "Are predicted neighbours true ones?"),
    "cont": ("Continuity", True, "Are true neighbours still neighbours?"),
    "swd": ("Sliced Wasserstein", False, "Is the overall shape right?"),
    "w1_knn": ("W1 of kNN distances", False, "Is the density right?"),
}
MORE = {
    "stress1_unscaled": ("Stress-1, unscaled", False, "Stress-1 before the prediction is scaled to fit"),
    "scale_error": ("Scale error", False, "Are typical distances too short or too long?"),
    "shell_f1_radius": ("Shell F1, shells of R20", True, "Shell F1 with rings as wide as a neighbourhood"),
    "cal_error": ("Calibration error", False, "Are neighbourhoods as wide as they should be?"),
    "lrmse_10": ("Local RMSE, k = 10", False, "How wrong are distances to the 10 nearest?"),
    "lrmse_20": ("Local RMSE, k = 20", False, "How wrong are distances to the 20 nearest?"),
    "lrmse_50": ("Local RMSE, k = 50", False, "How wrong are distances to the 50 nearest?"),
    "lrmse_100": ("Local RMSE, k = 100", False, "How wrong are distances to the 100 nearest?"),
    "local_stress": ("Local stress", False, "Stress-1 of neighbours alone"),
}
NOT_SCORES = ("n", "sampled")
