"""Predicted HBM against the memory reports of the TPU compiler, for programs of the same plans.

experiments/compiled_memory says how they were compiled; compiled_memory.py, what the bounds are.
"""

import re

import pytest
from accounts import to_host_bytes
from compiled_memory import (
    FOLDER,
    GIB,
    HEADROOM,
    SLACK,
    compared,
    in_page,
    read_bounds,
    reports,
    usable_gib,
)

import tpusim as ts

NAMES = list(reports())


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_within_its_bound(name: str) -> None:
    bound, error = read_bounds()[name], compared(name).error
    assert error <= bound
    assert bound <= error + HEADROOM + SLACK, (
        "a better prediction: run compiled_memory.py to lock it"
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_the_compiler_refuses_does_not_fit(name: str) -> None:
    one = compared(name)
    assert one.accepted == one.result.fits


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_moments_are_the_arguments(name: str) -> None:
    """The compiler's have the tokens besides, and small vectors rounded up to a tile.

    Adafactor's means over the dimension of a head are padded from a few heads to a tile of 128.
    """
    one = compared(name)
    held = one.result.memory_bytes
    state = held["weights"] + held["optimizer state"]
    tolerance = 0.002 if one.result.plan.optimizer.name == "adam" else 0.03
    assert state == pytest.approx(one.report["arguments"], rel=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_offloaded_is_on_the_host(name: str) -> None:
    """The compiler's tile of 2 x 8192 tokens has no padding, so the bytes are the same."""
    one = compared(name)
    assert to_host_bytes(one.result.program.body) == one.report.get("host", 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_reported_total_is_arguments_and_outputs_and_heap(name: str) -> None:
    """As the report rounds them: the state is donated, so that outputs lie where arguments do."""
    report = reports()[name]
    parts = report["arguments"] + report["outputs"] + report["heap"]
    assert parts == pytest.approx(report["total"], abs=2**20)
    assert report["live"] <= report["heap"]
    assert [size for size, *_ in report["peak"]] == sorted(
        (size for size, *_ in report["peak"]), reverse=True
    )


@pytest.mark.parametrize("chip", usable_gib())
def test_usable_memory_is_the_compilers(chip: str) -> None:
    """To the digits that it prints."""
    described = ts.load_chip(chip).device.hbm_usable_bytes / GIB
    assert described == pytest.approx(usable_gib()[chip], abs=0.0101)


@pytest.mark.parametrize("name", [n for n in NAMES if reports()[n]["verdict"] == "refused"])
def test_a_refusal_names_the_total_and_the_usable_memory(name: str) -> None:
    one = compared(name)
    needed, usable = map(float, re.findall(r"\(([\d.]+)G\)", one.report["message"]))
    assert needed == pytest.approx(one.report["total"] / GIB, abs=0.011)
    assert usable == usable_gib()[one.result.pod.chip.name]


def test_there_is_a_plan_and_a_bound_for_each_report_and_no_other() -> None:
    assert sorted(path.stem for path in (FOLDER / "plans").glob("*.toml")) == NAMES
    assert list(read_bounds()) == NAMES


def test_the_page_has_the_table_of_today() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    assert in_page(page) == page, "run python tests/validation/compiled_memory.py"
