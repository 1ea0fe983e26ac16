"""The figures of a report, a file each, and of a sweep; those imported here are in every report."""

from tpusim.report.figures import axes_matrix as axes_matrix
from tpusim.report.figures import breakdown as breakdown
from tpusim.report.figures import memory as memory
from tpusim.report.figures import pipeline as pipeline
from tpusim.report.figures import roofline as roofline
from tpusim.report.figures import timeline as timeline
from tpusim.report.figures import torus_heatmap as torus_heatmap
from tpusim.report.figures import utilisation as utilisation
