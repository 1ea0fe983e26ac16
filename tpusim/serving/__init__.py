"""Serving: steps of prefill and decode, a server whose steps they are, and its metrics."""

from tpusim.serving.metrics import NUMBERS as NUMBERS
from tpusim.serving.metrics import TIMES as TIMES
from tpusim.serving.metrics import ServingMetrics as ServingMetrics
from tpusim.serving.metrics import goodput as goodput
from tpusim.serving.result import ServingResult as ServingResult
