"""Runs by MaxText's own configs: a `base.yml` and overrides become a model, a plan and a slice."""

from tpusim.maxtext.run import from_maxtext as from_maxtext
