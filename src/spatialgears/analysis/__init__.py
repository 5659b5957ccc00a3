"""What to do with a reconstruction, public as ``sg.tl``: AnnData in, results in documented slots (section 4).

Functions that describe the cells write to the AnnData, as scanpy does, and return None, or the changed copy with
``copy=True``. Those that answer a question return a table and write nothing.
"""

from spatialgears.analysis.comparison import compare
from spatialgears.analysis.composition import abundance
from spatialgears.analysis.domains import spatial_domains
from spatialgears.analysis.imputation import impute
from spatialgears.analysis.markers import MarkerEnrichment, marker_enrichment
from spatialgears.analysis.mixing import mixing
from spatialgears.analysis.neighbors import neighbors_by_type
from spatialgears.analysis.registration import register
from spatialgears.analysis.smoothing import spatial_expression
from spatialgears.analysis.transfer import transfer
from spatialgears.analysis.weights import spot_weights

__all__ = [
    "MarkerEnrichment",
    "abundance",
    "compare",
    "impute",
    "marker_enrichment",
    "mixing",
    "neighbors_by_type",
    "register",
    "spatial_domains",
    "spatial_expression",
    "spot_weights",
    "transfer",
]
