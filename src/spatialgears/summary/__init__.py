"""What a run says to its user."""

from spatialgears.summary.content import report_content, write_summary

__all__ = ["report_content", "write_summary"]
