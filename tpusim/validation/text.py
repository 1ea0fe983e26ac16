"""A validation as tables for a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from tpusim.result import COMPUTE_LABELS, EXPOSED
from tpusim.validation.outcome import Outcome
from tpusim.validation.pairs import Pair
from tpusim.validation.validation import Validation

WIDTH = 100
SHARES = ("matmul", "attention", "vector")
LEGEND = (
    "error: predicted over measured, less one. MFU: predicted and measured, by the model's FLOPs, "
    "causal attention at half, against the bf16 peak. TFLOP/s: a device, as MaxText logs them, "
    "predicted. matmul, attention, vector and exposed communication: percent of the predicted step."
)


def text(validation: Validation) -> str:
    """A row a run, then the statistics, the pairs and the notes."""
    found = validation.statistics
    parts = (
        _runs(validation.outcomes),
        wrap(LEGEND, WIDTH),
        _statistics(found),
        _pairs(validation.pairs, found["pairs"]),
        _notes(validation),
    )
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part)


def _runs(outcomes: Sequence[Outcome]) -> Iterator[str]:
    width = max(len(one.run.id) for one in outcomes)
    heads = ("measured", "predicted", "error", "MFU", "was", "TFLOP/s", "matmul", "attn.", "vector")
    yield f"{'run':<{width}} chip" + _cells(heads) + "  exposed, status"
    for one in outcomes:
        head = f"{one.run.id:<{width}} {one.run.chip:<4}"
        yield (head + _cells(_numbers(one)) + f"  {_end(one)}").rstrip()


def _numbers(one: Outcome) -> Iterator[str]:
    yield f"{one.run.step_s:.3f} s"
    yield "-" if one.predicted_s is None else f"{one.predicted_s:.3f} s"
    yield signed(one.error)
    yield percent(one.mfu)
    yield percent(one.measured_mfu)
    yield "-" if one.tflops_per_device is None else f"{one.tflops_per_device:.1f}"
    for label in SHARES:
        yield f"{one.shares.get(label, 0):.0%}" if one.ok else "-"


_WIDTHS = (11, 11, 8, 7, 7, 9, 8, 7, 8)


def _cells(cells: Iterable[str]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


def _end(one: Outcome) -> str:
    """Exposed communication by axes, and what else is to be said of the row."""
    if not one.ok:
        return f"{one.status}: {one.reason}"
    others = [label for label in one.shares if label not in COMPUTE_LABELS]
    exposed = ", ".join(f"{name.removeprefix(EXPOSED)} {one.shares[name]:.0%}" for name in others)
    return "; ".join(filter(None, (exposed or "none", one.reason or "ok")))


_STATISTICS = {
    "median": "median_abs_error",
    "mean": "mean_abs_error",
    "p90": "p90_abs_error",
    "signed mean": "mean_error",
}


def _statistics(found: Mapping[str, Any]) -> Iterator[str]:
    """A row a group of runs: how many, how many failed, the errors, and tau-b of the MFU."""
    heads = ("runs", "failed", *_STATISTICS, "tau-b")
    yield f"{'absolute error':<30}" + "".join(f"{head:>12}" for head in heads)
    yield _group("all", found)
    for kind in ("by_chip", "by_family"):
        for name, group in found[kind].items():
            yield _group(f"  {name}", group)
    guess = found["baseline"]
    yield _group("guess: the chip's median MFU", guess["all_runs"])
    yield _group("  for the simulated runs", guess["simulated_runs"])
    yield f"tau-b of predicted and measured MFU within chips: {_tau(found['tau_b_within_chips'])}"


def _group(name: str, group: Mapping[str, Any]) -> str:
    errors = (percent(group[key]) for key in list(_STATISTICS.values())[:3])
    cells = (str(group["runs"]), str(group["failed"]), *errors, signed(group["mean_error"]))
    tau = _tau(group["tau_b"]) if "tau_b" in group else ""
    return (f"{name:<30}" + "".join(f"{cell:>12}" for cell in (*cells, tau))).rstrip()


def _pairs(pairs: Sequence[Pair], found: Mapping[str, Any]) -> Iterator[str]:
    """Ratios of pairs of runs that differ in one thing."""
    if not pairs:
        return
    yield (
        f"{len(pairs)} pairs that differ in one thing (second over first): ratio off by "
        f"{percent(found['median_abs_error'])} in the median, "
        f"{signed(found['mean_error'])} in the mean"
    )
    names = [f"{pair.second} / {pair.first}" for pair in pairs]
    width = max(map(len, names))
    yield f"{'':<{width}}{'measured':>10}{'predicted':>11}{'error':>8}  differ in"
    for name, pair in zip(names, pairs, strict=True):
        ratio = "-" if pair.predicted_ratio is None else f"{pair.predicted_ratio:.3f}"
        also = f"; also {', '.join(pair.also)}" if pair.also else ""
        yield (
            f"{name:<{width}}{pair.measured_ratio:>10.3f}{ratio:>11}{signed(pair.error):>8}"
            f"  {pair.thing}, {pair.change}{also}"
        )


def _notes(validation: Validation) -> Iterator[str]:
    """Each note once, with the runs that it is about."""
    about: dict[str, list[str]] = {}
    for one in validation.outcomes:
        for note in one.notes:
            about.setdefault(note, []).append(one.run.id)
    for note, names in about.items():
        yield from wrap(f"note: {note}: {', '.join(names)}", WIDTH, subsequent_indent="  ",
                        break_long_words=False, break_on_hyphens=False)  # fmt: skip
    if validation.unread:
        yield f"note: nothing reads the columns {', '.join(validation.unread)}"


def percent(fraction: float | None) -> str:
    """A share for people, `-` where there is none."""
    return "-" if fraction is None else f"{fraction:.1%}"


def signed(fraction: float | None) -> str:
    """The same with its sign."""
    return "-" if fraction is None else f"{fraction:+.1%}"


def _tau(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"
