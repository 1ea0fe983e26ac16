"""The event engine: a costed program in, an exact timeline out."""

from tpusim.engine.drive import NETWORK_MODES, NetworkMode, check_network_mode, run
from tpusim.engine.fold import Fold
from tpusim.engine.journal import Calls, Level, Repeat
from tpusim.engine.memory import Held, Memory, MemoryChange
from tpusim.engine.progress import StalledError
from tpusim.engine.timeline import LinkUse, Record, Stats, Timeline

__all__ = [
    "NETWORK_MODES",
    "Calls",
    "Fold",
    "Held",
    "Level",
    "LinkUse",
    "Memory",
    "MemoryChange",
    "NetworkMode",
    "Record",
    "Repeat",
    "StalledError",
    "Stats",
    "Timeline",
    "check_network_mode",
    "run",
]
