"""One self-contained HTML report of a run."""

from spatialgears.analysis.subject import require_genes, require_types
from spatialgears.report.content import ReportContent, ReportSlide, Section, SelfCheck
from spatialgears.report.gather import report_content
from spatialgears.report.write import require_plotly, write_page, write_report

__all__ = [
    "ReportContent",
    "ReportSlide",
    "Section",
    "SelfCheck",
    "report_content",
    "require_genes",
    "require_plotly",
    "require_types",
    "write_page",
    "write_report",
]
