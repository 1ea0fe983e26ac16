"""Changed StableHLO: compiled, or refused in a sentence; XLA does not end the process."""

import json
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from extent import thorough

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]

TESTS = Path(__file__).parents[1]
LONGEST = 400


def answers(first: int, last: int, *more: str) -> dict[int, str]:
    """What is said of the programs of these numbers, in a process of its own."""
    command = [sys.executable, str(TESTS / "stablehlo_mutations.py"), str(first), str(last), *more]
    made = subprocess.run(command, capture_output=True, check=False)
    found: dict[int, str] = dict(json.loads(line) for line in made.stdout.splitlines())
    where = max(found, default=first)
    assert made.returncode == 0, (where, made.stderr[-2000:].decode("utf-8", "replace"))
    return found


@pytest.mark.parametrize(
    ("first", "last"), [(0, 30), *(thorough(at, at + 250) for at in range(0, 1500, 250))]
)
def test_a_changed_program_is_compiled_or_refused_in_a_sentence(first: int, last: int) -> None:
    """The TPU compiler itself, which runs in a process of its own, is left out."""
    found: Counter[str] = Counter()
    for number, said in answers(first, last).items():
        found["refused" if said else "compiled"] += 1
        assert "Traceback" not in said, (number, said)
        assert len(said) <= LONGEST, (number, said)
        assert ".py:" not in said, (number, said)
    assert sum(found.values()) == last - first
    assert min(found.values()) > (last - first) / 20, found


@pytest.mark.parametrize(
    ("first", "last"), [(30, 36), *(thorough(at, at + 30) for at in range(100, 250, 30))]
)
def test_the_tpu_compiler_ends_none_of_our_processes(first: int, last: int) -> None:
    for number, said in answers(first, last, "compiled").items():
        assert "Traceback" not in said, (number, said)
        assert len(said) <= 2 * LONGEST, (number, said)
