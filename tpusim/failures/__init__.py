"""Failures of machines, cables and switches: rates, repair, and what can still be placed."""

from tpusim.failures.availability import Availability as Availability
from tpusim.failures.availability import availability as availability
from tpusim.failures.causes import CAUSES as CAUSES
from tpusim.failures.causes import Cause as Cause
from tpusim.failures.pod_question import PodQuestion as PodQuestion
