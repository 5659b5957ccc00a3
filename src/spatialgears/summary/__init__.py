"""What a run says to its user."""

from spatialgears.summary.content import report_content, write_summary
from spatialgears.summary.subject import require_types

__all__ = ["report_content", "require_types", "write_summary"]
