"""Print what share of the simulated step the bound is, on random plans of every kind.

It ends with an error for a bound above its step or its peak (`tests/laws/test_bound.py`).
"""

import argparse
import sys
from pathlib import Path
from statistics import median

TESTS = Path(__file__).parents[2] / "tests"


def main() -> None:
    """Print the median by kind and over all."""
    sys.path[:0] = [str(TESTS), str(TESTS / "laws")]
    import test_bound
    import test_bound_pipelines

    kinds = (*test_bound.KINDS, "uneven pipeline")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=1112, help="of each kind (10,000 in all)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.plans)
    print("| kind | plans | median | least |\n| --- | ---: | ---: | ---: |")
    every: list[float] = []
    for kind in given.kinds:
        uneven = kind == kinds[-1]
        found = [
            *(test_bound_pipelines.shares(numbers) if uneven else test_bound.shares(kind, numbers))
        ]
        every += found
        print_row(kind, found)
    print_row("all", every)


def print_row(kind: str, found: list[float]) -> None:
    """Print the shares of one kind."""
    print(f"| {kind} | {len(found):,} | {median(found):.3f} | {min(found):.3f} |", flush=True)


if __name__ == "__main__":
    main()
