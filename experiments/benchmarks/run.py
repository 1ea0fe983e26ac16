"""The speed of the simulator, beside a yardstick of plain Python.

    python experiments/benchmarks/run.py --out DIR [--check]

Prints the median and the spread of each benchmark and writes `benchmarks.json`. `--only NAME` runs
it alone (several times for several), `--check` compares with the ratios stored beside this
file and exits with 1 if one got slower by half, or takes too long beside another; one sample within
its bound is enough, as other work on the machine only ever adds. `--store` stores those of today.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import AT_MOST, BENCHMARKS, search_counts
from yardstick import user_seconds

STORED = Path(__file__).with_name("ratios.json")
SLOWER = 1.5
"""Times the stored ratio: from here on a benchmark counts as slower."""

TRIES = 3
"""How often a benchmark is taken whole that seems slower after one sample."""

YARDSTICK = "yardstick_s"


@dataclass(frozen=True)
class Sample:
    """Seconds of work of some units, and those of the yardstick at the same time."""

    seconds: float
    units: int
    yardstick_s: float

    @property
    def ratio(self) -> float:
        """Seconds of a unit over those of the yardstick."""
        return self.seconds / self.units / self.yardstick_s


@dataclass(frozen=True)
class Measured:
    """A benchmark: its samples, as the values of its name."""

    name: str
    samples: Sequence[Sample]

    @property
    def values(self) -> list[float]:
        """The samples, lowest first: units per second, or seconds."""
        rate = "_per_s" in self.name
        each = (s.units / s.seconds if rate else s.seconds / s.units for s in self.samples)
        return sorted(each)

    @property
    def ratio(self) -> float:
        """The median ratio to the yardstick."""
        return median(sample.ratio for sample in self.samples)

    @property
    def lowest(self) -> float:
        """The lowest ratio to the yardstick."""
        return min(sample.ratio for sample in self.samples)


def take_samples(name: str, count: int) -> Iterator[Sample]:
    """Yield samples of a benchmark in this process, the yardstick before and after each."""
    once = BENCHMARKS[name].prepare()
    before = yardstick_seconds()
    for number in range(count):
        began = user_seconds()
        units = once(number)
        seconds = user_seconds() - began
        after = yardstick_seconds()
        yield Sample(seconds, units, (before + after) / 2)
        before = after


def yardstick_seconds() -> float:
    """Return the user CPU seconds of the yardstick in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("yardstick.py"))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(name: str, samples: int | None = None) -> Measured:
    """Take the samples of a benchmark in processes of its own, or so many in one process."""
    benchmark = BENCHMARKS[name]
    command = [sys.executable, str(Path(__file__)), "--samples", name]
    command += ["--count", str(samples or benchmark.samples)]
    found: list[Sample] = []
    for _ in range(1 if samples else benchmark.processes):
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found += [Sample(*each) for each in json.loads(text)]
    return Measured(name, found)


def slower(found: Mapping[str, float], stored: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence for each ratio that exceeds its bound or has none."""
    for name, ratio in found.items():
        if name not in stored:
            yield f"{name} has no stored ratio; run with --store, and say why in the change"
        elif ratio > SLOWER * stored[name]:
            yield (
                f"{name} takes {ratio:.3g} yardsticks, {ratio / stored[name]:.2f} times the stored "
                f"{stored[name]:.3g}; {SLOWER} are allowed"
            )


def as_json(found: Sequence[Measured]) -> dict[str, object]:
    """Return the medians by name, with their spread and their ratios to the yardstick."""
    values = {YARDSTICK: yardsticks(found)} | {each.name: each.values for each in found}
    return {
        **{name: median(some) for name, some in values.items()},
        **(search_counts() if "search_s" in values else {}),
        "spread": {name: [some[0], some[-1]] for name, some in values.items()},
        "ratios": {each.name: each.ratio for each in found},
    }


def yardsticks(found: Sequence[Measured]) -> list[float]:
    """Return the seconds of all yardsticks, lowest first."""
    return sorted(sample.yardstick_s for each in found for sample in each.samples)


def show(name: str, values: Sequence[float], ratio: str, title: str) -> None:
    """Print the line of a benchmark."""
    low, mid, high = (f"{value:.4g}" for value in (values[0], median(values), values[-1]))
    print(f"{name:24}{mid:>10}{f'{low} to {high}':>24}{ratio:>10}  {title}", flush=True)


def checked(name: str, stored: Mapping[str, float]) -> Measured:
    """Take one sample of a benchmark, and all of them while it seems slower than stored."""
    best = measure(name, samples=1)
    for _ in range(TRIES):
        if not any(slower({name: best.lowest}, stored)):
            break
        best = min(best, measure(name), key=lambda each: each.lowest)
    return best


def too_long(found: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence for each benchmark that takes too long beside another, measured again."""
    for name, (other, most) in AT_MOST.items():
        if name not in found or other not in found:
            continue
        times = found[name] / found[other]
        for _ in range(TRIES):
            if times <= most:
                break
            times = min(times, measure(name).ratio / measure(other).ratio)
        if times > most:
            yield f"{name} takes {times:.3g} times as long as {other}; {most} are allowed"


def main() -> int:
    """Measure, print, write, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out_benchmarks"))
    parser.add_argument("--only", action="append", choices=BENCHMARKS, metavar="NAME")
    parser.add_argument("--check", action="store_true", help="compare with the stored ratios")
    parser.add_argument("--store", action="store_true", help="store the ratios of today")
    parser.add_argument("--samples", choices=BENCHMARKS, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.samples:
        taken = take_samples(given.samples, given.count)
        print(json.dumps([[each.seconds, each.units, each.yardstick_s] for each in taken]))
        return 0
    stored = json.loads(STORED.read_text()) if given.check else None
    print(f"{'benchmark':24}{'median':>10}{'spread':>24}{'ratio':>10}")
    found = []
    for name in given.only or BENCHMARKS:
        found.append(measure(name) if stored is None else checked(name, stored))
        show(name, found[-1].values, f"{found[-1].ratio:.3g}", BENCHMARKS[name].title)
    show(YARDSTICK, yardsticks(found), "1", "400,000 calls of plain Python")
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "benchmarks.json").write_text(f"{json.dumps(as_json(found), indent=2)}\n")
    ratios = {each.name: float(f"{each.ratio:.3g}") for each in found}
    if given.store:
        known = json.loads(STORED.read_text()) if STORED.exists() else {}
        STORED.write_text(f"{json.dumps(known | ratios, indent=2)}\n")
    wrong = []
    if stored is not None:
        wrong = [*slower({each.name: each.lowest for each in found}, stored), *too_long(ratios)]
    for sentence in wrong:
        print(f"error: {sentence}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
