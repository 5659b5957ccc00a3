"""One self-contained HTML report of a reconstruction."""

from spatialgears.report.content import ReportContent, ReportSlide, Section, SelfCheck
from spatialgears.report.write import write_page

__all__ = ["ReportContent", "ReportSlide", "Section", "SelfCheck", "write_page"]
