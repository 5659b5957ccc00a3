"""What to do with a reconstruction, public as ``sg.tl``: AnnData in, results in documented slots."""

from spatialgears.analysis.domains import spatial_domains
from spatialgears.analysis.markers import MarkerEnrichment, marker_enrichment

__all__ = ["MarkerEnrichment", "marker_enrichment", "spatial_domains"]
