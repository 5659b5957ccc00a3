"""Stage B (section 3.2): canonical slides, minisets of spots, and pose-invariant targets."""

from spatialgears.supervision.minisets import Minisets, MinisetSampler, PairedMinisets
from spatialgears.supervision.slides import Frame, canonicalise
from spatialgears.supervision.targets import Pose, centre, procrustes

__all__ = [
    "Frame",
    "MinisetSampler",
    "Minisets",
    "PairedMinisets",
    "Pose",
    "canonicalise",
    "centre",
    "procrustes",
]
