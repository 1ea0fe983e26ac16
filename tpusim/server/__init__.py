"""A server of requests in time: its scheduler, its cache of pages, and its replicas."""

from tpusim.server.policy import Policy as Policy
from tpusim.server.serve import DecodePool as DecodePool
from tpusim.server.serve import Outage as Outage
from tpusim.server.serve import Watch as Watch
from tpusim.server.serve import serve as serve
from tpusim.server.served import Begun as Begun
from tpusim.server.served import Served as Served
from tpusim.server.served import Spans as Spans
from tpusim.server.step_load import StepCosts as StepCosts
from tpusim.server.step_load import StepLoad as StepLoad
