"""A result as files: text, JSON, tables, figures and a trace."""

from tpusim.report.axes_matrix import axes_data, plot_axes
from tpusim.report.breakdown import breakdown_data, plot_breakdown
from tpusim.report.document import document
from tpusim.report.files import check_folder, write_report
from tpusim.report.ideal import perfect_compiler
from tpusim.report.memory import memory_data, plot_memory
from tpusim.report.mesh_heatmap import mesh_heatmap_data, plot_mesh_heatmap
from tpusim.report.pipeline import pipeline_data, plot_pipeline
from tpusim.report.ranking import plot_ranking, ranking_data
from tpusim.report.roofline import plot_roofline, roofline_data
from tpusim.report.timeline import plot_timeline
from tpusim.report.torus import torus_data
from tpusim.report.torus_heatmap import plot_torus
from tpusim.report.trace import trace
from tpusim.report.utilisation import plot_utilisation, utilisation_data
from tpusim.report.windows import timeline_data

__all__ = [
    "axes_data",
    "breakdown_data",
    "check_folder",
    "document",
    "memory_data",
    "mesh_heatmap_data",
    "perfect_compiler",
    "pipeline_data",
    "plot_axes",
    "plot_breakdown",
    "plot_memory",
    "plot_mesh_heatmap",
    "plot_pipeline",
    "plot_ranking",
    "plot_roofline",
    "plot_timeline",
    "plot_torus",
    "plot_utilisation",
    "ranking_data",
    "roofline_data",
    "timeline_data",
    "torus_data",
    "trace",
    "utilisation_data",
    "write_report",
]
