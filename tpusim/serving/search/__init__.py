"""The cheapest servers of a space that meet targets, proved by bounds."""

from tpusim.serving.search.hunt import search_servers as search_servers
from tpusim.serving.search.server_space import ServerSpace as ServerSpace
from tpusim.serving.search.targets import Targets as Targets
