"""Stage C (sections 3.3 and 3.4): latent geometry from expression, by generator and residual diffusion."""

from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.training import GeometryFit, train_geometry

__all__ = ["GeometryFit", "GeometryModel", "train_geometry"]
