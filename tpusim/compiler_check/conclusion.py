"""What a check concludes: the step, the HBM and the two verdicts on it, in one sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from tpusim.base.units import format_bytes, format_seconds
from tpusim.compiler_check.compare_parts import ComparedPart
from tpusim.compiler_check.differences import Difference
from tpusim.results import Fit

AGREEMENT = 0.05
"""Relative difference, of step times or of HBM, up to which plan and program agree."""

BUFFERS_NAMED = 3
LEAST_NAMED = 0.01
"""Items of HBM that a conclusion names at most, and the least share of the peak by which each
differs."""

SIDE_SECONDS = ("plan_s", "program_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedHbm:
    """The HBM of a device in a plan and in its program, and what both say of it.

    plan_bytes, program_bytes: at the peak.
    usable_bytes: what the compiler can use.
    plan_fit: the verdict on the plan.
    refused: True if the compiler refused the program, whose bytes are those of its last attempt.
    plan_peak, program_peak: where in the step the peaks are, in words; empty if unknown.
    items: what is held at the peaks, what differs most first; they sum to both.
    """

    plan_bytes: float
    program_bytes: float
    usable_bytes: float
    plan_fit: Fit
    refused: bool
    plan_peak: str
    program_peak: str
    items: tuple[ComparedPart, ...]

    @property
    def sides(self) -> tuple[float, float]:
        """The bytes of the plan and of the program."""
        return self.plan_bytes, self.program_bytes

    @property
    def error(self) -> float:
        """The fraction by which the plan needs more than the program; negative if less."""
        return self.plan_bytes / self.program_bytes - 1

    @property
    def agrees(self) -> bool:
        """True if the peaks differ by 5 % of the program's or less, and the verdicts do not."""
        return abs(self.error) <= AGREEMENT and self.same_verdict

    @property
    def same_verdict(self) -> bool:
        """False if the plan fits and the compiler refuses it, or the other way round.

        A borderline plan is right in both cases.
        """
        return self.plan_fit is not (Fit.FITS if self.refused else Fit.TOO_LARGE)

    @property
    def named(self) -> tuple[ComparedPart, ...]:
        """The items by which the larger peak exceeds the other one most."""
        least = LEAST_NAMED * max(self.sides)
        sign = 1 if self.error > 0 else -1
        rows = [row for row in self.items if sign * row.difference >= least]
        return tuple(rows[:BUFFERS_NAMED])


def conclusion(
    steps: tuple[float, float], hbm: ComparedHbm, differences: Sequence[Difference]
) -> str:
    """Return what a check concludes, with the reasons of what differs.

    steps: seconds of the plan and of the program.
    differences: the step in parts; () for a conclusion without reasons.
    """
    error = steps[0] / steps[1] - 1
    if abs(error) <= AGREEMENT and hbm.agrees and not hbm.refused:
        sides = zip(map(format_seconds, steps), map(format_bytes, hbm.sides), strict=True)
        return (
            f"the compiler agrees within {_percent(error)} on the step and {_percent(hbm.error)} "
            f"on HBM: {_pair(*(f'{step} and {need}' for step, need in sides))}"
        )
    parts = [_on_step(steps, error, differences), _on_hbm(hbm, bool(differences))]
    if refusal := _refusal(hbm):
        parts = [refusal, *reversed(parts)]
    return "; ".join(parts)


def _on_step(steps: tuple[float, float], error: float, differences: Sequence[Difference]) -> str:
    times = _pair(*map(format_seconds, steps))
    if abs(error) <= AGREEMENT:
        return f"the compiler agrees within {_percent(error)} on the step ({times})"
    why = reason(error, differences)
    return (
        f"the plan is {_share(error)} too {'slow' if error > 0 else 'fast'} ({times}){_mostly(why)}"
    )


def _on_hbm(hbm: ComparedHbm, reasons: bool) -> str:
    sizes = _pair(*map(format_bytes, hbm.sides))
    if abs(hbm.error) <= AGREEMENT:
        return f"the compiler agrees within {_percent(hbm.error)} on HBM ({sizes})"
    amount = "much" if hbm.error > 0 else "little"
    held = "; ".join(_held(hbm)) if reasons else ""
    return f"the plan has {_share(hbm.error)} too {amount} HBM ({sizes}){_mostly(held)}"


def _refusal(hbm: ComparedHbm) -> str:
    """Return what the compiler says of HBM where it refuses the program, or the plan does not fit.

    Empty where both fit.
    """
    there = f"{format_bytes(hbm.usable_bytes)} can be used"
    if hbm.refused:
        but = "but the plan fits" if hbm.plan_fit is Fit.FITS else f"and the plan {_is(hbm)}"
        return f"the compiler refuses it, {but}: {there}"
    return "" if hbm.same_verdict else f"the compiler takes it, but the plan does not fit: {there}"


def _is(hbm: ComparedHbm) -> str:
    return "is borderline" if hbm.plan_fit is Fit.BORDERLINE else str(hbm.plan_fit)


def _held(hbm: ComparedHbm) -> Iterator[str]:
    for row in hbm.named:
        sides = [format_bytes(size) if size else "none" for size in (row.plan, row.program)]
        yield f"{row.what}, {sides[0]} in the plan and {sides[1]} in the program"


def _mostly(why: str) -> str:
    return f", mostly because of {why}" if why else ""


def _pair(plan: str, program: str) -> str:
    return f"plan {plan}, program {program}"


def _percent(error: float) -> str:
    return f"{ceil(abs(error) * 100 - 1e-9) or 1} %"


def _share(error: float) -> str:
    return f"{abs(error):.0%}".replace("%", " %")


def reason(error: float, differences: Sequence[Difference]) -> str:
    """Return the topic that adds most to the difference of the steps, in words; empty without one.

    error: the relative difference, whose sign counts.
    """
    topics: dict[str, list[Difference]] = {}
    for row in differences:
        topics.setdefault(row.topic, []).append(row)
    sign = 1 if error > 0 else -1
    rows = max(topics.values(), key=lambda rows: sign * _seconds(rows), default=[])
    if not rows or sign * _seconds(rows) <= 0:
        return ""
    first = max(rows, key=lambda row: sign * row.seconds)
    if len(rows) == 1:
        return str(first)
    sums = (format_seconds(sum(getattr(row, side) for row in rows)) for side in SIDE_SECONDS)
    return f"{first.topic} ({' against '.join(sums)}); {first}"


def _seconds(rows: Sequence[Difference]) -> float:
    return sum(row.seconds for row in rows)
