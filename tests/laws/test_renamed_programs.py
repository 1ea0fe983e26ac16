"""Names carry no meaning: a compiled program under other names has the same numbers."""

import random
from functools import cache
from typing import Any

import pytest
from extent import thorough
from renamed_programs import STORED, numbers, renamed, stored

pytest.importorskip("jaxlib", reason="reading HLO needs the extra `xla`")


@cache
def under_own_names(number: int) -> Any:
    return numbers(stored(number))


@pytest.mark.parametrize(
    "case", [case if case % 41 == 0 else thorough(case) for case in range(8 * len(STORED))]
)
def test_renaming_changes_no_number(case: int) -> None:
    """Each stored program under eight sets of names."""
    number = case % len(STORED)
    program = renamed(stored(number), random.Random(f"names {case}"))
    found, wanted = numbers(program), under_own_names(number)
    for key, value in wanted.items():
        assert found[key] == value, (STORED[number].name, program.mesh, key)
