"""A result as files: text, JSON, tables and figures."""

from tpusim.report.breakdown import breakdown_data, plot_breakdown
from tpusim.report.document import document
from tpusim.report.files import check_folder, write_report
from tpusim.report.ideal import perfect_compiler

__all__ = [
    "breakdown_data",
    "check_folder",
    "document",
    "perfect_compiler",
    "plot_breakdown",
    "write_report",
]
