"""Traffic: the requests that reach a server, when they arrive, and how long they are."""

from tpusim.traffic.requests import Requests as Requests
from tpusim.traffic.requests import Traffic as Traffic
