"""What a report is made of: tracks, tables, figures and pages."""

from tpusim.report.compared_step import ComparedStep, read_step, step_of
from tpusim.report.csv_tables import decimal_seconds, lines_csv, operations_csv, transfers_csv
from tpusim.report.figures.canvas import new_figure, time_scale
from tpusim.report.figures.memory import HOLDER_STYLES, LEVEL_COLUMNS, OTHER_HOLDERS
from tpusim.report.figures.palette import (
    AXIS_STYLES,
    COMPUTE_STYLES,
    DIGIT,
    OTHER_AXES,
    PHASE_SHADES,
    axis_style,
    styles,
)
from tpusim.report.figures.predicted_measured import (
    MeasuredPoint,
    plot_predicted_measured,
    predicted_measured_svg,
    predicted_measured_title,
)
from tpusim.report.figures.registry import FIGURES
from tpusim.report.figures.render import draw_figures, figure_bytes
from tpusim.report.figures.roofline import Roofline, operation_rows
from tpusim.report.figures.torus_panels import MOST_PLANES, torus_panels
from tpusim.report.figures.utilisation import (
    CORE_COMMUNICATES,
    CORE_COMPUTES,
    CORE_WAITS,
    resource_name,
)
from tpusim.report.html import report_page
from tpusim.report.html.resource_use import PARTS, resource_rows
from tpusim.report.link_traffic import link_loads, link_series, link_volumes
from tpusim.report.report_files import render_files
from tpusim.report.step_trace import COUNTER_COLUMNS, OPS_THREAD, SLOT_THREAD, trace_bytes
from tpusim.report.track_slices import TrackSlice, core_slices, memory_levels, stream_tracks

__all__ = [
    "AXIS_STYLES",
    "COMPUTE_STYLES",
    "CORE_COMMUNICATES",
    "CORE_COMPUTES",
    "CORE_WAITS",
    "COUNTER_COLUMNS",
    "DIGIT",
    "FIGURES",
    "HOLDER_STYLES",
    "LEVEL_COLUMNS",
    "MOST_PLANES",
    "OPS_THREAD",
    "OTHER_AXES",
    "OTHER_HOLDERS",
    "PARTS",
    "PHASE_SHADES",
    "SLOT_THREAD",
    "ComparedStep",
    "MeasuredPoint",
    "Roofline",
    "TrackSlice",
    "axis_style",
    "core_slices",
    "decimal_seconds",
    "draw_figures",
    "figure_bytes",
    "lines_csv",
    "link_loads",
    "link_series",
    "link_volumes",
    "memory_levels",
    "new_figure",
    "operation_rows",
    "operations_csv",
    "plot_predicted_measured",
    "predicted_measured_svg",
    "predicted_measured_title",
    "read_step",
    "render_files",
    "report_page",
    "resource_name",
    "resource_rows",
    "step_of",
    "stream_tracks",
    "styles",
    "time_scale",
    "torus_panels",
    "trace_bytes",
    "transfers_csv",
]
