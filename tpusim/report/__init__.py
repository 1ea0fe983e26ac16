"""A result as files: text, JSON, tables, figures and a trace."""

from tpusim.report import plot
from tpusim.report.check_files import write_check
from tpusim.report.comparison import Comparison, compare
from tpusim.report.comparison_files import write_comparison
from tpusim.report.figures.axes_matrix import axes_data, plot_axes
from tpusim.report.figures.breakdown import breakdown_data, plot_breakdown
from tpusim.report.figures.check import check_data, plot_check
from tpusim.report.figures.memory import memory_data, plot_memory
from tpusim.report.figures.pipeline import pipeline_data, plot_pipeline
from tpusim.report.figures.registry import ReportFigure, register_figure
from tpusim.report.figures.roofline import plot_roofline, roofline_data
from tpusim.report.figures.scaling import plot_scaling, scaling_data
from tpusim.report.figures.sweep_heatmap import mesh_heatmap_data, plot_mesh_heatmap
from tpusim.report.figures.sweep_ranking import plot_ranking, ranking_data
from tpusim.report.figures.time_windows import timeline_data
from tpusim.report.figures.timeline import plot_timeline
from tpusim.report.figures.torus_heatmap import plot_torus
from tpusim.report.figures.torus_use import torus_data
from tpusim.report.figures.training import plot_training, training_data
from tpusim.report.figures.utilisation import plot_utilisation, utilisation_data
from tpusim.report.figures.waterfall import plot_waterfall, waterfall_data
from tpusim.report.report_files import check_folder, perfect_compiler, write_report
from tpusim.report.result_json import document
from tpusim.report.step_difference import StepDifference
from tpusim.report.trace import trace

__all__ = [
    "Comparison",
    "ReportFigure",
    "StepDifference",
    "axes_data",
    "breakdown_data",
    "check_data",
    "check_folder",
    "compare",
    "document",
    "memory_data",
    "mesh_heatmap_data",
    "perfect_compiler",
    "pipeline_data",
    "plot",
    "plot_axes",
    "plot_breakdown",
    "plot_check",
    "plot_memory",
    "plot_mesh_heatmap",
    "plot_pipeline",
    "plot_ranking",
    "plot_roofline",
    "plot_scaling",
    "plot_timeline",
    "plot_torus",
    "plot_training",
    "plot_utilisation",
    "plot_waterfall",
    "ranking_data",
    "register_figure",
    "roofline_data",
    "scaling_data",
    "timeline_data",
    "torus_data",
    "trace",
    "training_data",
    "utilisation_data",
    "waterfall_data",
    "write_check",
    "write_comparison",
    "write_report",
]
