"""Calibrations: their file, and the chip that has their factors."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from tpusim.base import FileError, HardwareError
from tpusim.costs.program_costs import work_seconds
from tpusim.hardware import (
    FACTORS,
    Calibration,
    Factor,
    Slice,
    least_factor,
    load_chip,
    read_calibration,
)
from tpusim.hardware.calibration import EFFICIENCIES, SECONDS
from tpusim.hardware.chip import CostConstants
from tpusim.program import AttentionWork, ConvolutionWork, MatmulWork, VectorWork

MINE = Calibration(
    chip="v5p",
    factors=(("matmul", Factor(1.1, 1.05, 1.15, 3)), ("all-gather", Factor(1.2, 1.0, 1.4, 2))),
    learnt_from=("a.toml", 'b "new".xplane.pb'),
    date="2026-01-31",
    runs=1,
    operations=5,
    spread=0.025,
    notes=("hbm is clipped",),
    steps=((("chip", "v5p"), ("experts", False), ("step_s", 1.5), ("residual", 0.01)),),
)


def of(chip: str = "v5p", **factors: float) -> Calibration:
    made = {name.replace("_", "-"): value for name, value in factors.items()}
    return Calibration(
        chip=chip, factors=tuple((name, Factor(v, v, v)) for name, v in made.items())
    )


def test_the_file_gives_the_calibration_back(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    MINE.save(path)
    found = read_calibration(path)
    assert found.name == "mine.toml"
    assert Calibration(**{k: getattr(found, k) for k in found.__slots__} | {"name": ""}) == MINE


def test_it_prints_as_a_table() -> None:
    assert str(MINE) == (
        "calibration of v5p from 1 run and 5 operations: measured over predicted\n"
        "  factor      value        interval  count\n"
        "  matmul      1.100  1.050 to 1.150      3\n"
        "  all-gather  1.200  1.000 to 1.400      2\n"
        "  left over: 2.5%\n"
        "  note: hbm is clipped"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no chip or no table [factors]; give a file that `tpusim calibrate` wrote"),
        ("[slice]", "unknown key 'slice'"),
        ("x = ", "not valid TOML"),
        ('chip = "v5p"\n[factors.matmull]\nvalue = 1', "unknown factor 'matmull'; did you mean"),
        ('chip = "v5p"\n[factors.matmul]\nvalue = -1', "is -1; write a number from 0.01 to 100"),
        ('chip = "v5p"\n[factors.matmul]\nvalue = nan', "is nan; write a number"),
        ('chip = "v5p"\n[factors.matmul]\nvalue = "1"', "write a number from 0.01 to 100"),
        ('chip = "v5p"\n[factors.matmul]\nlow = 1', "write a table with value = 1.0"),
        ('chip = "v5p"\n[factors.matmul]\nvalue = 1\nlow = 2', "is not between low and high"),
        ('chip = "v5p"\nruns = -1\n[factors]', "runs is -1; write a number from 0"),
        ('chip = "v5p"\nnotes = 1\n[factors]', "notes is 1; write a list of texts"),
        ('chip = "v5p"\nsteps = 1\n[factors]', "steps is 1; write a table [[steps]]"),
    ],
)
def test_a_wrong_file_gets_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(FileError) as error:
        read_calibration(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("generation", ["v2", "v5p", "7x"])
def test_every_factor_changes_what_it_names(generation: str) -> None:
    """Of v2 and 7x more constants are stated than of the others."""
    chip = load_chip(generation)
    for name in FACTORS:
        costs = chip.calibrated(replace(of(**{name: 1.25}), chip=generation)).costs
        scaled = dict.fromkeys(EFFICIENCIES.get(name, ()), 1 / 1.25)
        scaled |= dict.fromkeys(SECONDS.get(name, ()), 1.25)
        for key, by in scaled.items():
            usual = getattr(chip.costs, key)
            found = getattr(costs, key)
            assert found is None if usual is None else found == pytest.approx(usual * by)
        if name not in EFFICIENCIES and name not in SECONDS:
            assert costs.time_of(name) == 1.25
    assert chip.costs.time_of("all-gather") == chip.costs.time_of(None) == 1


@pytest.mark.parametrize("generation", ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"])
def test_nothing_is_faster_than_physics(generation: str) -> None:
    chip = load_chip(generation)
    every = tuple((name, Factor(0.01, 0.01, 0.01)) for name in FACTORS)
    costs = chip.calibrated(Calibration(chip=generation, factors=every)).costs
    assert costs.matmul_efficiency * costs.matmul_in_step == pytest.approx(1)
    for name, keys in EFFICIENCIES.items():
        assert all((getattr(costs, key) or 1) <= 1 for key in keys), name
    assert costs.time_of("all-gather") == least_factor("all-gather", chip.costs)
    assert chip.costs.ici_efficiency / costs.time_of("all-gather") == pytest.approx(1)


def test_factors_of_one_change_nothing() -> None:
    chip = load_chip("v6e")
    ones = tuple((name, Factor()) for name in FACTORS)
    made = chip.calibrated(Calibration(chip="v6e", factors=ones))
    for key in ("matmul_in_step", "hbm_efficiency", "dispatch", "vector_launch"):
        assert getattr(made.costs, key) == getattr(chip.costs, key)


def test_another_chip_and_a_second_calibration_are_refused(tmp_path: Path) -> None:
    MINE.save(tmp_path / "mine.toml")
    with pytest.raises(HardwareError, match=r"mine.toml is of v5p, and the slice has v6e"):
        Slice("v6e", "4x4", calibration=tmp_path / "mine.toml")
    with pytest.raises(HardwareError, match="calibrated already"):
        load_chip("v5p").calibrated(MINE).calibrated(MINE)
    with pytest.raises(HardwareError, match="calibration is 3; write the path"):
        Slice("v5p", "4x4x4", calibration=3)  # type: ignore[arg-type]


def test_a_slice_says_so_and_keeps_it(tmp_path: Path) -> None:
    MINE.save(tmp_path / "mine.toml")
    pod = Slice("v5p", "4x4x4", calibration=tmp_path / "mine.toml")
    assert str(pod) == "v5p:4x4x4, calibrated by mine.toml"
    assert pod.machine == "v5p:4x4x4"
    assert str(pod.changed(num_slices=2)) == "v5p:4x4x4 x 2 slices, calibrated by mine.toml"
    assert pod.healthy == pod != Slice("v5p", "4x4x4")
    slower = Slice("v5p", "4x4x4", calibration=MINE, clock="1 GHz")
    assert str(slower) == ("v5p:4x4x4, cores at 1 GHz, calibrated by 1 run and 5 operations")


BY_KIND = {"attention_efficiency_forward", "attention_efficiency_backward", "kernel_step"} | {
    *("ici_efficiency", "hop_latency", "collective_launch", "die_launch", "calibrated_times")
}
"""What `time_of` scales, with all else of its kind."""

KEPT = {"dcn_latency", "op_launch", "chip_jitter", "slice_jitter", "row_message"} | {
    *("matmul_overlap", "matmul_overlap_in_step", "epilogue_overlap")
}
"""What no factor changes: exponents, jitter, networks between slices, launches of all kinds, and
rows of servers, which no training step sends."""


def test_each_constant_has_a_factor_or_a_reason_to_have_none() -> None:
    scaled = [key for keys in (*EFFICIENCIES.values(), *SECONDS.values()) for key in keys]
    every = sorted([*scaled, "matmul_efficiency", *BY_KIND, *KEPT])
    assert every == sorted(entry.name for entry in fields(CostConstants))


ATTENTION = AttentionWork(4, 16, 4096, 4096, 128, "bf16", True, 0, False, 0, 0)
CONVOLUTION = ConvolutionWork(64, 3136, 9, 64, 64, "bf16", 1e8, 1e7, 1e6, window=(3, 3))
UNITS = ("matmul", "vector", "hbm")
KERNELS = {
    f"{library} attention, {kernel}": replace(
        ATTENTION, library=library, backward=kernel != "forward", part=kernel
    )
    for library in ("splash", "tokamax")
    for kernel in ("forward", "dq", "dkv", "all")
}
GROUPS = {
    "of HBM": VectorWork(1e8, 1e7, 1e7),
    "on the chip": VectorWork(0, 0, 1e7),
    "launch": VectorWork(0, 0, 0),
    "crossing": VectorWork(0, 0, 10, crossing=1e5),
    "of both": VectorWork(1e7, 1e7, 1e8),
}
WORKS = {
    "small matmul": (MatmulWork(1, 64, 4096, 4096, "bf16", 3.4e7, 5e5, 1e5), UNITS),
    "large matmul": (MatmulWork(1, 8192, 4096, 4096, "bf16", 1e8, 6e7, 1e8), UNITS),
    "convolution": (CONVOLUTION, UNITS),
    "small convolution": (replace(CONVOLUTION, batch=1), UNITS),
    **{name: (work, ("attention",)) for name, work in KERNELS.items()},
    "attention of one query": (replace(ATTENTION, q_len=1, read_bytes=1e9), UNITS),
    **{f"group {name}": (work, UNITS) for name, work in GROUPS.items()},
    **{f"compiled {name}": (replace(work, compiled=True), UNITS) for name, work in GROUPS.items()},
    "scatter": (VectorWork(1e6, 1e6, 0, scattered=1e5), (*UNITS, "gather")),
}
"""Work, and the factors that scale all of it together."""


@pytest.mark.parametrize("generation", ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"])
@pytest.mark.parametrize("name", WORKS)
def test_factors_scale_the_whole_of_their_work(name: str, generation: str) -> None:
    """Whatever bounds it, work takes 1.25 times as long where the units that do it do."""
    work, factors = WORKS[name]
    chip = load_chip(generation).replace(op_launch=1e-30)
    made = tuple((factor, Factor(1.25, 1.25, 1.25)) for factor in factors)
    slower = chip.calibrated(Calibration(chip=generation, factors=made))
    usual, longer = (work_seconds(work, each.device) for each in (chip, slower))
    assert longer == pytest.approx(1.25 * usual, rel=1e-9)


@pytest.mark.parametrize("name", dict.fromkeys([*EFFICIENCIES, *SECONDS]))
def test_the_page_names_the_constants_that_a_factor_changes(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs/calibration.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    changed = [*EFFICIENCIES.get(name, ()), *SECONDS.get(name, ())]
    assert [key for key in changed if f"`{key}`" not in row] == []
