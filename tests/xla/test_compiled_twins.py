"""Plans of experiments/plan_vs_compiler, compiled afresh: programs are as in the tables."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from extent import sample
from plan_vs_compiler import module, twins

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(
        find_spec("libtpu") is None or find_spec("optax") is None,
        reason="needs pip install 'tpusim[xla]'",
    ),
]

TWINS, OF_A_GENERATION = 12, 3
SYSTEMS, SYSTEMS_OF_A_GENERATION = 6, 2

TABLE, SYSTEM_TABLE = twins(), twins("systems")
FEW_EXAMPLES = (0, 6, 102, 105, 204, 301)
"""Twins with fewer than eight examples a device: six generations, and each of the systems."""


def chosen() -> list[int]:
    """The twins that compile fastest, of each generation and each set of axes; no chip often."""
    seen: set[Any] = set()
    found: list[int] = []
    generations: list[str] = []
    for row in TABLE.sort_values("compile_s").itertuples():
        axes = tuple(json.loads(str(row.plan))["mesh"])
        if axes not in seen and generations.count(str(row.generation)) < OF_A_GENERATION:
            seen.add(axes)
            generations.append(str(row.generation))
            found.append(int(str(row.number)))
    return found[:TWINS]


def systems() -> list[int]:
    """The twins that compile fastest, one of a system, and no generation often."""
    found: dict[str, int] = {}
    generations: list[str] = []
    for row in SYSTEM_TABLE.sort_values("compile_s").to_dict("records"):
        often = generations.count(row["generation"]) >= SYSTEMS_OF_A_GENERATION
        if row["system"] not in found and not often:
            generations.append(row["generation"])
            found[row["system"]] = int(row["number"])
    return list(found.values())[:SYSTEMS]


def compiled(number: int, name: str) -> dict[str, Any]:
    """The row that the experiment makes of a twin."""
    row: dict[str, Any] | None = module("run").row_of(number, full=False, sample=name)
    assert row is not None
    assert not row["error"], row["error"]
    return row


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))


def test_the_sample_is_of_many_generations_and_axes() -> None:
    rows = TABLE[TABLE.number.isin(chosen())]
    assert len(chosen()) == TWINS
    assert rows.generation.nunique() >= 5


@pytest.mark.parametrize("number", sample(chosen(), 3))
def test_a_program_is_as_the_table_has_it(number: int) -> None:
    check(number, "twins")


def test_the_systems_are_of_many_kinds() -> None:
    rows = SYSTEM_TABLE[SYSTEM_TABLE.number.isin(systems())]
    assert len(systems()) == rows.system.nunique() == SYSTEMS
    assert rows.generation.nunique() >= 3


@pytest.mark.parametrize("number", sample(systems(), 3))
def test_the_program_of_a_system_is_as_the_table_has_it(number: int) -> None:
    check(number, "systems")


@pytest.mark.parametrize("number", sample(FEW_EXAMPLES, 3))
def test_a_program_of_few_examples_is_as_the_table_has_it(number: int) -> None:
    check(number, "few_examples")


def check(number: int, name: str) -> None:
    table = twins(name)
    (known,) = table[table.number == number].to_dict("records")
    made = compiled(number, name)
    assert made["program_flops"] == pytest.approx(known["program_flops"], rel=1e-6)
    assert made["program_hbm_bytes"] == pytest.approx(known["program_hbm_bytes"], rel=1e-3)
    assert traffic(made) == pytest.approx(traffic(known), rel=1e-3)
    assert made["program_step_s"] == pytest.approx(known["program_step_s"], rel=0.2)


def traffic(row: dict[str, Any]) -> dict[str, float]:
    """Bytes on the wire of the program, by axes and mode."""
    found: dict[str, float] = {}
    for each in json.loads(row["facts"])["collectives"]:
        for mode, nbytes in (each["program"] or {"modes": {}})["modes"].items():
            name = f"{'+'.join(each['axes'])} {mode}"
            found[name] = found.get(name, 0.0) + nbytes
    return found
