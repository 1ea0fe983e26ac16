"""Profiles: what a profiler recorded of steps on TPUs, as tables, and the programs inside."""

from tpusim.profiles.profile import Profile
from tpusim.profiles.read_profile import read_profile

__all__ = ["Profile", "read_profile"]
