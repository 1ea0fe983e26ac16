"""What a step loses to its sharding, in sentences: repeated work, padding, implicit resharding."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple, TypeVar

from tpusim.base.same import Same
from tpusim.base.shown_value import with_article
from tpusim.base.toml_text import toml_pairs
from tpusim.base.units import format_mesh, format_seconds
from tpusim.models import Architecture
from tpusim.partition import Layout
from tpusim.plan import Axes, Plan
from tpusim.results.extra_flops import PaddedWork, PartitionedStep, RepeatedWork
from tpusim.results.result import Result
from tpusim.results.sharding_cures import Tables, cure
from tpusim.results.step_warning import StepWarning, WarningKind
from tpusim.results.unasked_time import UnaskedTime, annotation, mismatch, unasked_time

_Work = TypeVar("_Work", RepeatedWork, PaddedWork)

LEAST_FLOPS = 0.05
LEAST_TIME = 0.02
"""The fraction of all matrix FLOPs, and of the step, from which a warning says what is lost."""

LEAST_NAMED = 0.02
"""The fraction of all matrix FLOPs from which a cause of them is named, if all together warn."""


def step_warnings(
    result: Result,
    model: Architecture,
    plan: Plan,
    *,
    resharded: bool,
    retry: Callable[[Plan], float | None],
) -> tuple[StepWarning, ...]:
    """Return the warnings on a training step.

    resharded: it has implicit reshardings.
    retry: simulates another plan; the seconds of its step, or None if that is not known.
    """
    least = LEAST_FLOPS * float(result.flops.total)
    if resharded or result.flops.redundant > least or result.flops.padding > least:
        return _found(Same((result, model, plan)), retry)
    return ()


@lru_cache(maxsize=4)
def _found(key: Same, retry: Callable[[Plan], float | None]) -> tuple[StepWarning, ...]:
    given: Any = key.objects
    result, model, plan = given
    step, least = PartitionedStep(model, plan), LEAST_FLOPS * float(result.flops.total)
    unasked = (_resharding(step, e) for e in unasked_time(result) if e.share > LEAST_TIME)
    repeated = _large(step.repeated_work()) if result.flops.redundant > least else ()
    padded = _large(step.padded_work()) if result.flops.padding > least else ()
    losses = (
        *(_repeated(step, each) for each in repeated),
        *(_padded(step, each) for each in padded),
        *unasked,
    )
    return tuple(_warning(loss, plan, result.step_time_s, retry) for loss in losses)


class _Loss(NamedTuple):
    """A loss in words, and the tables of the plan or a hint against it."""

    kind: WarningKind
    share: float
    what: str
    tables: Tables
    hint: str = ""


def _warning(
    loss: _Loss, plan: Plan, step_s: float, retry: Callable[[Plan], float | None]
) -> StepWarning:
    """Return the warning of a loss: what to write against it, if the step is then faster."""
    kind, share, what, tables, hint = loss
    if hint:
        return StepWarning(kind, share, f"{what}; write {hint}", what=what)
    if not tables:
        text = f"{what}; nothing that was tried changes this"
        return StepWarning(kind, share, text, what=what)
    written = " and ".join(
        f"[plan.{key}] {', '.join(toml_pairs(table))}" for key, table in _changed(plan, tables)
    )
    keys = {key: _plain(table) for key, table in tables.items()}
    then_s = retry(plan.replace(**keys))
    if then_s is None:
        return StepWarning(kind, share, f"{what}; write {written}", keys, what)
    then = f"{format_seconds(then_s)} (simulated)"
    if then_s < step_s:
        text = f"{what}; write {written}: the step then takes {then}"
        return StepWarning(kind, share, text, keys, what)
    text = f"{what}; {written} changes this, but the step takes {then}"
    return StepWarning(kind, share, text, what=what)


def _large(found: Iterator[_Work]) -> Iterator[_Work]:
    """Yield the causes of lost FLOPs that are named, if all together warn."""
    causes = list(found)
    if sum(each.share for each in causes) > LEAST_FLOPS:
        yield from (each for each in causes if each.share > LEAST_NAMED)


def _repeated(step: PartitionedStep, found: RepeatedWork) -> _Loss:
    """Name the dimension that rules would divide; where none does, those that are whole."""
    tables, node = cure(step, found.axes) or {}, found.node
    ruled = dict(_changed(step.plan, tables)).get("rules", {})
    divided = {dim for dim, _ in node.split}
    whole = dict.fromkeys(d for t in node.op.inputs for d in t.dims if d not in divided)
    dims = dict.fromkeys(key.removeprefix("act_") for key in ruled) or whole
    axes, devices = "+".join(found.axes), prod(step.plan.mesh[axis] for axis in found.axes)
    what = (
        f"{found.share:.0%} of all FLOPs are repeated: no rule divides {', '.join(dims)} over "
        f"{axes}, whose {devices} devices all do the same work, most of it in {node.op.name}"
    )
    return _Loss("repeated work", found.share, what, tables)


def _padded(step: PartitionedStep, found: PaddedWork) -> _Loss:
    mesh = step.plan.mesh
    over = format_mesh(mesh, found.axes)
    hints = []
    if found.dim in step.model.flat():
        hints.append(f"[model] {found.dim} = {found.padded}")
    if len(found.axes) == 1:
        (axis,) = found.axes
        hints.append(f"a mesh with {axis} = {gcd(found.size, mesh[axis])}")
    what = (
        f"{found.share:.0%} of all FLOPs are padding: {found.dim} is {found.size}, and is computed "
        f"as {found.padded} over {over}"
    )
    return _Loss("padding", found.share, what, {}, " or ".join(hints))


def _resharding(step: PartitionedStep, found: UnaskedTime) -> _Loss:
    between = mismatch(step, found)
    what = f"{found.share:.1%} of the step waits for {with_article(found.what)} of {found.tensor}"
    if between is None:
        return _Loss("resharding", found.share, f"{what}, which no rule asks for", {})
    before, after = _spec(between.before), _spec(between.after)
    dims = ", ".join(between.dims)
    reader = f" by {between.reader}" if between.reader else ""
    what += (
        f" [{dims}], which no rule asks for: it is made as {before} and wanted as {after}{reader}"
    )
    return _Loss("resharding", found.share, what, annotation(step, found, between) or {})


def _changed(plan: Plan, tables: Tables) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each table of a change with its entries that are new."""
    for key, table in tables.items():
        before = getattr(plan, key)
        yield (
            key,
            {
                name: value
                for name, value in _plain(table).items()
                if before.get(name) != table[name]
            },
        )


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with rules of one axis as its name."""
    return {
        key: rule[0] if isinstance(rule, tuple) and len(rule) == 1 else rule
        for key, rule in table.items()
    }


def _spec(layout: Layout) -> str:
    """Return a layout as a PartitionSpec of JAX."""
    return f"P({', '.join(_entry(axes) for axes in layout)})"


def _entry(axes: Axes) -> str:
    if len(axes) == 1:
        return repr(axes[0])
    return repr(axes) if axes else "None"
