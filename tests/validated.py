"""Measured runs as they are set up, simulated and summed up."""

from tpusim.validation.error_table import order_table, points, renewed
from tpusim.validation.outcome import families_of, family_of, kinds_of, simulate_run
from tpusim.validation.pairs import run_groups
from tpusim.validation.residual_table import residual_rows
from tpusim.validation.statistics import (
    error_statistics,
    range_statistics,
    summarise,
    summarise_pairs,
    tau_b,
    tau_b_within_chips,
    with_guesses,
)

__all__ = [
    "error_statistics",
    "families_of",
    "family_of",
    "kinds_of",
    "order_table",
    "points",
    "range_statistics",
    "renewed",
    "residual_rows",
    "run_groups",
    "simulate_run",
    "summarise",
    "summarise_pairs",
    "tau_b",
    "tau_b_within_chips",
    "with_guesses",
]
