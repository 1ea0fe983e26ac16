"""The figures of a report, of a sweep and of a server; those imported here are in reports."""

from tpusim.report.figures import axes_matrix as axes_matrix
from tpusim.report.figures import breakdown as breakdown
from tpusim.report.figures import memory as memory
from tpusim.report.figures import pipeline as pipeline
from tpusim.report.figures import roofline as roofline
from tpusim.report.figures import serving_outage as serving_outage
from tpusim.report.figures import serving_requests as serving_requests
from tpusim.report.figures import serving_time as serving_time
from tpusim.report.figures import timeline as timeline
from tpusim.report.figures import torus_heatmap as torus_heatmap
from tpusim.report.figures import utilisation as utilisation
