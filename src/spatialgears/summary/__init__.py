"""What a run says to its user."""

from spatialgears.summary.content import report_content, require_plotly, write_report
from spatialgears.summary.subject import require_types

__all__ = ["report_content", "require_plotly", "require_types", "write_report"]
