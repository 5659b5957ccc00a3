"""Settings of earlier versions: old files are read where nothing changes, and refused by name where something would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spatialgears.errors import ConfigError

#: Removed keys and the value that each is fixed at now.
FIXED: dict[str, Any] = {
    "expression.moran_neighbors": 6,
    "expression.thin_min": 0.3,
    "expression.cell_thin_min": 0.7,
    "expression.augment_thinned": False,
    "expression.hidden": [512, 256],
    "expression.basis_dim": 200,
    "expression.view_dropout": 0.3,
    "expression.view_noise": 0.015,
    "expression.view_jitter": 0.25,
    "expression.gamma": 1.0,
    "expression.discriminator_hidden": 512,
    "expression.discriminator_dropout": 0.1,
    "expression.grl_max": 1.0,
    "expression.probe_k": 20,
    "expression.probe_margin": 0.08,
    "supervision.tau": [0.2, 3.0],
    "supervision.overlap": 0.5,
    "supervision.min_overlap": 20,
    "supervision.dim": 32,
    "geometry.heads": 4,
    "geometry.self_conditioning": True,
    "geometry.distance_bins": 24,
    "geometry.angle_bins": 8,
    "geometry.knn": 15,
    "geometry.landmarks": 16,
    "geometry.sigma_min": 0.02,
    "geometry.sigma_max": 5.0,
    "geometry.curriculum": [1.0, 3.0, 5.0],
    "geometry.cfg_dropout": 0.0,
    "geometry.score": 1.0,
    "geometry.gram": 1.0,
    "geometry.gram_scale": 0.5,
    "geometry.nca_neighbors": 10,
    "geometry.gen_align": 1.0,
    "geometry.gen_gram": 1.0,
    "geometry.gram_sigma_gate": 1.0,
    "geometry.overlap_sigma_gate": 1.0,
    "geometry.slide_views": 200,
    "geometry.warmup": 0.1,
    "geometry.grad_clip": 1.0,
    "geometry.holdout": 0.0,
    "assembly.guidance": 1.0,
    "assembly.graph_k": 50,
    "assembly.jaccard": 0.2,
    "assembly.patch_batch": 16,
    "assembly.patch_overlap": 0.7,
    "assembly.min_overlap": 25,
    "assembly.edge_k": 10,
    "assembly.edge_long": 16,
    "assembly.min_support": 2,
    "assembly.spread_max": 0.5,
    "assembly.landmarks": 128,
    "assembly.huber_delta": 0.1,
    "assembly.anchor": 0.1,
    "assembly.solve_lr": 1e-2,
}
#: The same for ``assembly.mode = patches``, which is the paper's now; other modes did not use these keys.
FIXED_FOR_PATCHES: dict[str, Any] = {
    "assembly.patch_context": "local",
    "assembly.global_fraction": 0.25,
    "assembly.anchor_fraction": 1.0,
    "assembly.start": "isomap",
    "assembly.planar": False,
    "assembly.untangle": False,
    "assembly.extend_rounds": 3,
}
#: Removed values of keys that remain, and what to use instead.
REMOVED_VALUES: dict[tuple[str, Any], str] = {
    ("geometry.inputs", "both"): "expression or embedding",
    ("geometry.refiner", "absolute"): "residual or none",
}


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings without the keys that were removed; refuses by name those that hold another value than they have now."""
    kept: dict[str, Any] = {}
    refused: list[str] = []
    assembly = values.get("assembly")
    patches = isinstance(assembly, Mapping) and assembly.get("mode") == "patches"
    fixed = FIXED | (FIXED_FOR_PATCHES if patches else {})
    for stage, inner in values.items():
        if not isinstance(inner, Mapping):
            kept[stage] = inner
            continue
        kept[stage] = {}
        for name, value in inner.items():
            key = f"{stage}.{name}"
            if key in fixed:
                if (list(value) if isinstance(value, tuple) else value) != fixed[key]:
                    refused.append(
                        f"{key} = {value!r}: this key was removed; it is fixed at {fixed[key]!r} now"
                    )
            elif key in FIXED_FOR_PATCHES:
                continue
            elif isinstance(value, str) and (instead := REMOVED_VALUES.get((key, value))):
                refused.append(f"{key} = {value!r}: this value was removed; use {instead}")
            else:
                kept[stage][name] = value
    if refused:
        raise ConfigError(
            "The configuration is of an earlier version of spatialgears and cannot be used:\n  - "
            + "\n  - ".join(refused),
            "Remove these keys, or use the version that wrote the file.",
        )
    return kept
