"""Everything that decides a result, apart from the data: settings, presets, and what became of removed settings."""

from spatialgears.config.presets import PRESETS, Preset
from spatialgears.config.root import Config, flat
from spatialgears.config.settings import AssemblyConfig, ExpressionConfig, GeometryConfig, SupervisionConfig

__all__ = [
    "PRESETS",
    "AssemblyConfig",
    "Config",
    "ExpressionConfig",
    "GeometryConfig",
    "Preset",
    "SupervisionConfig",
    "flat",
]
