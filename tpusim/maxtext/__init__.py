"""Runs by MaxText's own configs: a `base.yml` and overrides become a model, a plan and a slice."""

from tpusim.maxtext.run import from_maxtext

__all__ = ["from_maxtext"]
