"""What a training run does around its steps: how long, evaluations, checkpoints, start-up."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.html_text import html_fields
from tpusim.base.shown_value import shown
from tpusim.base.units import parse
from tpusim.base.value_checks import (
    MOST_COUNT,
    check_flag,
    check_positive,
    check_word,
    is_number,
    seconds,
)
from tpusim.failures import Failures, unit_chips
from tpusim.hardware import Slice
from tpusim.plan import Plan
from tpusim.training.stragglers import EXAMPLES, Stragglers

MOST_AMOUNT = 1_000_000
"""The highest price, in USD an hour of a chip, and the dirtiest grid, in g/kWh."""

MODES = ASYNCHRONOUS, BLOCKING = "asynchronous", "blocking"
"""Checkpoints: the steps go on once the state is in the hosts' memory, or once it is written."""


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """Evaluations during a run.

    every: steps between them.
    examples: examples of each, in forward passes of the plan's batch.
    time_s: seconds of each, in place of those passes.
    """

    every: int
    examples: int | None = None
    time_s: float | None = None

    def __post_init__(self) -> None:
        check_positive("train.evaluations.every", self.every)
        if (self.examples is None) == (self.time_s is None):
            raise PlanError(
                "train.evaluations needs either examples, such as 10000, or their time_s; "
                "write one of the two"
            )
        if self.examples is not None:
            check_positive("train.evaluations.examples", self.examples)
        else:
            object.__setattr__(self, "time_s", seconds("train.evaluations.time_s", self.time_s))


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Checkpoints during a run, and where they go.

    every: steps between them; the state after the last step is saved too.
    mode: `asynchronous` if steps go on while hosts write, `blocking` if not.
    storage: bandwidth of the storage for the whole job, such as `"50 GB/s"`; no limit if left out.
    host: bandwidth of one host to the storage, such as `"2 GB/s"`; by default what published saves
        reached. The host's share of DCN is a limit too.
    capacity: size of the storage, such as `"1 PB"`; not checked if left out.
    kept: checkpoints that are kept.
    time_s: seconds until one is written, in place of bytes over bandwidth.
    memory_every: steps between copies that stay in the hosts' memory, a divisor of `every`; None
        for none.
    peers: another host has each of those copies too, so that they outlive a host.
    """

    every: int
    mode: str = ASYNCHRONOUS
    storage: str | float | None = None
    host: str | float | None = None
    capacity: str | float | None = None
    kept: int = 1
    time_s: float | None = None
    memory_every: int | None = None
    peers: bool = True

    def __post_init__(self) -> None:
        check_positive("train.checkpoints.every", self.every)
        check_flag("train.checkpoints.peers", self.peers)
        if self.memory_every is not None:
            check_positive("train.checkpoints.memory_every", self.memory_every)
            if self.every % self.memory_every:
                raise PlanError(
                    f"train.checkpoints.memory_every is {self.memory_every}, which does not divide "
                    f"every, {self.every}; write a divisor of it"
                )
        check_positive("train.checkpoints.kept", self.kept)
        check_word("train.checkpoints.mode", self.mode, MODES)
        for name, unit in (("storage", "B/s"), ("host", "B/s"), ("capacity", "B")):
            object.__setattr__(self, name, _quantity(name, getattr(self, name), unit))
        if self.time_s is not None:
            object.__setattr__(self, "time_s", seconds("train.checkpoints.time_s", self.time_s))


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A training run around the steps of a plan.

    tokens, examples, steps: how long it is; one of the three. Examples are sequences or images.
    step_time_s: measured seconds of a step, in place of the simulated ones.
    initialization_s: seconds until the devices are there, without compiling.
    preparation_s: seconds until the state is there, such as that of a checkpoint.
    compile_s: seconds to compile the step, 0 for one from a cache; by default of its size.
    warm_up_s: seconds by which the first steps take longer than the others.
    evaluations: evaluations; None for none.
    checkpoints: checkpoints; None for none.
    failures: failures; None for a run in which nothing breaks.
    stragglers: slow chips, pauses of hosts and slices that differ; None for none.
    price: USD an hour of a chip, in place of the list price on demand.
    grid: grams of CO2 equivalent per kWh of the data centre.
    """

    tokens: float | None = None
    examples: int | None = None
    steps: int | None = None
    step_time_s: float | None = None
    initialization_s: float | None = None
    preparation_s: float = 0.0
    compile_s: float | None = None
    warm_up_s: float | None = None
    evaluations: Evaluations | None = None
    checkpoints: Checkpoints | None = None
    failures: Failures | None = None
    stragglers: Stragglers | None = None
    price: float | None = None
    grid: float | None = None

    def __post_init__(self) -> None:
        given = [
            name for name in ("tokens", "examples", "steps") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            found = f"{', '.join(given)} are" if given else "none of them is"
            raise PlanError(
                f"a training run is as long as its tokens, its examples or its steps, but {found} "
                "given; write one, such as tokens = 1e12"
            )
        if self.tokens is None:
            check_positive(f"train.{given[0]}", getattr(self, given[0]))
        elif not is_number(self.tokens) or not 1 <= self.tokens <= MOST_COUNT:
            raise PlanError(
                f"train.tokens is {shown(self.tokens)}; write a number from 1 to {MOST_COUNT:.0e}"
            )
        for name in (
            "step_time_s", "initialization_s", "preparation_s", "compile_s", "warm_up_s", "price",
            "grid",
        ):  # fmt: skip
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _amount(name, getattr(self, name)))
        if self.step_time_s == 0:
            raise PlanError("train.step_time_s is 0; write seconds above 0, or leave it out")
        for name, kind in (("evaluations", Evaluations), ("checkpoints", Checkpoints)):
            object.__setattr__(self, name, _part(name, getattr(self, name), kind))
        failures = _section("failures", self.failures, Failures, "spares = 2")
        object.__setattr__(self, "failures", failures)
        example = f"pauses = {EXAMPLES['pauses']}"
        stragglers = _section("stragglers", self.stragglers, Stragglers, example)
        object.__setattr__(self, "stragglers", stragglers)

    def _repr_html_(self) -> str:
        """Return what is given, for a notebook."""
        return html_fields("TrainingRun", self)

    def steps_of(self, plan: Plan) -> int:
        """Return the steps until all is read, the last one whole."""
        return steps_of(self, plan.global_batch, plan.seq_len)

    def paid_share(self, pod: Slice) -> float:
        """Return the chips that are paid for, spares included, over those that train."""
        asked = self.failures
        if asked is None or asked.displaces or not asked.spares:
            return 1.0
        return 1 + asked.spares * unit_chips(pod) / pod.chips


def steps_of(run: TrainingRun, global_batch: int, seq_len: int) -> int:
    """Return the steps of a run whose batch has these sequences of these tokens.

    A model without sequences, whose `seq_len` is 0, has one token an example.
    """
    if run.steps is not None:
        return run.steps
    if run.examples is not None:
        return -(-run.examples // global_batch)
    assert run.tokens is not None
    return ceil(run.tokens / (global_batch * max(seq_len, 1)))


def _quantity(name: str, value: str | float | None, unit: str) -> float | None:
    """Return a bandwidth or a size in SI. Raise PlanError for less than 1 B/s or 1 B."""
    if value is None:
        return None
    where = f"train.checkpoints.{name}"
    found = float(value) if is_number(value) else parse(value, unit, where)
    if not 1 <= found < inf:
        example = "50 GB/s" if unit == "B/s" else "1 PB"
        raise PlanError(f"{where} is {shown(value)}; write at least 1 {unit}, such as {example!r}")
    return found


def _amount(name: str, value: Any) -> float:
    """Return a number of a run: seconds, or a price. Raise PlanError if it is out of range."""
    where = f"train.{name}"
    if name.endswith("_s"):
        return seconds(where, value)
    if not is_number(value) or not 0 <= value <= MOST_AMOUNT:
        raise PlanError(f"{where} is {shown(value)}; write a number from 0 to {MOST_AMOUNT:,}")
    return float(value)


def _section(name: str, value: Any, kind: type, example: str) -> Any:
    """Return a section of the run, of itself or of its table. Raise PlanError for anything else."""
    if value is None or isinstance(value, kind):
        return value
    if isinstance(value, Mapping):
        return kind(**value)
    raise PlanError(f"{name} is {shown(value)}; write a section [{name}], such as {example}")


def _part(name: str, value: Any, kind: type) -> Any:
    """Return a part of a run, of itself or of its table. Raise PlanError for anything else."""
    if value is None or isinstance(value, kind):
        return value
    if isinstance(value, Mapping) and "every" in value:
        return kind(**value)
    raise PlanError(
        f"train.{name} is {value!r}; write a table with every, the steps between two of them"
    )
