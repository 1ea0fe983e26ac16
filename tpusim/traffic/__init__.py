"""Traffic: the requests that reach a server, when they arrive, and how long they are."""

from tpusim.traffic.lengths import Length as Length
from tpusim.traffic.lengths import Lengths as Lengths
from tpusim.traffic.requests import Requests as Requests
from tpusim.traffic.traffic import Traffic as Traffic
