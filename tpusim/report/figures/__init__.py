"""The figures of a report, a file each, and of a sweep; those imported here are in every report."""

from tpusim.report.figures import (
    axes_matrix,
    breakdown,
    memory,
    pipeline,
    roofline,
    timeline,
    torus_heatmap,
    utilisation,
)

__all__ = [
    "axes_matrix",
    "breakdown",
    "memory",
    "pipeline",
    "roofline",
    "timeline",
    "torus_heatmap",
    "utilisation",
]
