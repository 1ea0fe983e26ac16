"""A server that a search simulated, and what a search found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpusim.base.errors import PlanError, nearest
from tpusim.base.units import format_dollars
from tpusim.base.value_checks import is_list
from tpusim.serving.configuration import Configuration, checked_price
from tpusim.serving.result import number
from tpusim.serving.saturation import Load
from tpusim.serving.search.targets import LATENCIES, OUTPUT, Targets, shown

COST, TOKEN_COST, CHIPS = "cost", "token_cost", "chips"
OBJECTIVES = (COST, TOKEN_COST, CHIPS, *LATENCIES)
"""What a search makes small: dollars per hour, dollars per million generated tokens, chips, or a
latency."""

MILLION, SECONDS_AN_HOUR = 1e6, 3600.0

HEADS = {COST: "USD/hour", TOKEN_COST: "USD/M tokens out", CHIPS: "chips"}


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that was simulated.

    configuration: of the server.
    values: metrics of `Targets`, all of them.
    load: what arrives, and whether that saturates it.
    strain: the largest part of a target that it takes; above 1 it misses one.
    objectives: values of the objectives.
    cache_tokens: that a rank holds.
    """

    configuration: Configuration
    values: Mapping[str, float]
    load: Load
    strain: float
    objectives: tuple[float, ...]
    cache_tokens: int

    @property
    def meets(self) -> bool:
        """The server meets all targets."""
        return self.strain <= 1 and not self.load.saturated

    def distance(self) -> tuple[float, float]:
        """Return how far the server is from meeting the targets, to compare with others."""
        over = self.load.offered / self.load.sustainable if self.load.saturated else 1.0
        return over, self.strain

    @property
    def rank(self) -> tuple[float, ...]:
        """What servers are ordered by: the objectives, then the strain."""
        return (*self.objectives, self.strain)

    def facts(self) -> dict[str, Any]:
        """Return the server as plain data."""
        chosen = self.configuration
        return {
            "slice": str(chosen.pod),
            "chips": chosen.chips,
            "replicas": chosen.replicas,
            "plan": str(chosen.plan),
            "settings": list(chosen.settings),
            "usd_per_hour": chosen.usd_per_hour,
            **self.values,
            "saturated": self.load.saturated,
            "meets": self.meets,
            "strain": self.strain,
            "cache_tokens": self.cache_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSearch:
    """What a search found.

    targets, objectives: what was asked.
    best: servers that meet the targets, the best first; of two objectives the Pareto front.
    tried: all that were simulated with all requests.
    nearest: the server that misses the targets least, of those that were simulated; None where one
        meets them.
    servers: configurations of the space.
    left_out: those that are none, that do not fit, or that a bound rules out, by reason.
    seconds: that the search took.
    """

    targets: Targets
    objectives: tuple[str, ...]
    best: tuple[FoundServer, ...]
    tried: tuple[FoundServer, ...]
    nearest: FoundServer | None
    servers: int
    left_out: Mapping[str, int]
    seconds: float

    @property
    def verdict(self) -> str:
        """What is known, in a sentence."""
        if self.best:
            if len(self.objectives) > 1:
                return "proved: no server that meets the targets is better in both"
            return "proved: no server that meets the targets is better"
        if self.nearest is None:
            return "no server of the space can be simulated; write other slices or dtypes"
        missed = "; ".join(self.targets.missed(self.nearest.values).values())
        load = self.nearest.load
        why = f"misses {missed}"
        if load.saturated:
            why = (
                f"is saturated: {number(load.offered)} requests/s arrive, and "
                f"{number(load.sustainable)} start"
            )
        return (
            f"no server of the space meets the targets ({self.targets}); the nearest, "
            f"{self.nearest.configuration}, {why}"
        )


def objective_value(name: str, server: Configuration, values: Mapping[str, float]) -> float:
    """Return an objective of a server; with bounds of its metrics, a lower bound.

    Raise PlanError where a chip has no price and the objective needs one.
    """
    if name == CHIPS:
        return float(server.chips)
    if name == COST:
        return checked_price(server)
    if name == TOKEN_COST:
        rate = checked_price(server) / SECONDS_AN_HOUR
        return rate * MILLION / max(values[OUTPUT], 1e-300)
    return values[name]


def checked_server_objectives(given: Any) -> tuple[str, ...]:
    """Return the names of one or two objectives. Raise PlanError for anything else."""
    names = tuple(given) if is_list(given) else (given,)
    for name in names:
        if name not in OBJECTIVES:
            raise PlanError(f"search.objective is {name!r}; {nearest(str(name), OBJECTIVES)}")
    if not 1 <= len(names) <= 2 or len(set(names)) < len(names):
        raise PlanError(f"search.objective is {given!r}; write one, or two that differ for a front")
    return names


def objective_words(name: str, value: float) -> str:
    """Return the value of an objective, without what its head says."""
    if name in LATENCIES:
        return shown(name, value)
    return f"{value:,.0f}" if name == CHIPS else format_dollars(value).removeprefix("$")
