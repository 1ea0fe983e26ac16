"""A new chip is one file: loaded, made into slices and simulated without a change elsewhere."""

import re
from pathlib import Path

import pytest
from compiler_parts import DeviceIds
from inputs import CHIP_SECTIONS

import tpusim as ts
from tpusim.base import FileError, HardwareError
from tpusim.hardware import CompilerRules, legal_shapes
from tpusim.training import TrainingRun, train_step

V5P = Path(__file__).parents[3] / "hardware_specs" / "v5p.toml"
MODEL = ts.models.Transformer(layers=3, embed=1024, mlp=4096, heads=8, vocab=1000)
PLAN = ts.Plan(mesh={"fsdp": 32}, global_batch=32, seq_len=1024)


def written(folder: Path, **changes: str) -> Path:
    """The file of a chip `v9`: v5p's, with other values for some entries."""
    text = V5P.read_text("utf-8").replace('name = "v5p"', 'name = "v9"')
    for key, value in changes.items():
        entry = re.compile(rf"(\.{key}\]\nvalue = )[^\n]*")
        assert len(entry.findall(text)) == 1, key
        text = entry.sub(rf"\g<1>{value}", text)
    file = folder / "v9.toml"
    file.write_text(text, "utf-8")
    return file


def test_a_plan_is_simulated_on_a_chip_of_ones_own(tmp_path: Path) -> None:
    file = written(tmp_path, hbm_bandwidth='"5530 GB/s"', bf16='"918 TFLOP/s"', prefixes='["v9"]')
    chip = ts.load_chip(file)
    assert (chip.name, chip.generation) == ("v9", "v9")
    pod = ts.Slice(chip, "2x4x4")
    assert (str(pod), pod.name) == ("v9:2x4x4", "v9-64")
    new, old = ts.simulate(MODEL, PLAN, pod), ts.simulate(MODEL, PLAN, ts.Slice("v5p", "2x4x4"))
    assert new.fits
    assert new.step_time_s < old.step_time_s
    assert "v9:2x4x4" in str(new)


def test_a_file_that_says_nothing_of_the_compiler_gets_defaults_and_notes(tmp_path: Path) -> None:
    """A section like v5p's gives the same seconds, and no note."""
    file = written(tmp_path)
    said = ts.load_chip(file)
    parts = re.split(r"(?m)^(?=# What the TPU|# Constants)", file.read_text("utf-8"))
    file.write_text(parts[0] + parts[2], "utf-8")
    unsaid = ts.load_chip(file)
    assert unsaid.compiler is None
    assert unsaid.compiler_rules == CompilerRules()
    new, old = (ts.simulate(MODEL, PLAN, ts.Slice(chip, "2x4x4")) for chip in (unsaid, said))
    assert new.step_time_s == old.step_time_s
    missing = "the file of v9 has no section [compiler], so "
    assert f"{missing}no buffer of a step is kept on the chip" in str(new)
    assert missing not in str(old)
    trained = [train_step(each, TrainingRun(steps=10)) for each in (new, old)]
    assert [any(missing in note for note in run.notes) for run in trained] == [True, False]
    (note,) = {DeviceIds.on_mesh({"data": 32}, ts.Slice(unsaid, "2x4x4")).note}
    assert note.startswith(f"{missing}JAX is taken to lay meshes along the dimensions")
    assert unsaid.replace(on_chip_room="64 MiB").compiler == CompilerRules(on_chip_room=2.0**26)


def test_a_copy_under_another_name_takes_as_long_where_no_compiler_is_imitated(
    tmp_path: Path,
) -> None:
    """The `xla` lowering is a table of what the compiler was seen to do, by generation."""
    plan = PLAN.replace(lowering="ideal")
    pods = (ts.Slice(ts.load_chip(written(tmp_path)), "2x4x4"), ts.Slice("v5p", "2x4x4"))
    new, old = (ts.simulate(MODEL, plan, pod).step_time_s for pod in pods)
    assert new == old


def test_its_slices_follow_its_own_rules(tmp_path: Path) -> None:
    file = written(
        tmp_path, max_cubes="2", listed='["2x2x2"]', prefixes='["v9p"]', any_order="true"
    )
    chip = ts.load_chip(file)
    assert legal_shapes(chip.slice_rules) == ((2, 2, 2), (4, 4, 4), (4, 4, 8))
    assert ts.Slice(chip, "4x8x4_twisted").name == "v9p-256"
    with pytest.raises(HardwareError, match=r"v9 has no slice 2x2x1: .* nearest are 2x2x2"):
        ts.Slice(chip, "2x2x1")
    with pytest.raises(HardwareError, match=r"no slice 8x8x8: .* in any order with at most 128"):
        ts.Slice(chip, "8x8x8")
    assert ts.Slice(chip.replace(generation="v5e"), "2x4").name == "v5e-8"


@pytest.mark.parametrize("section", [*CHIP_SECTIONS, "slices"])
def test_a_section_that_is_missing_is_named(section: str, tmp_path: Path) -> None:
    file = written(tmp_path)
    parts = re.split(r"(?m)^(?=\[)", file.read_text("utf-8"))
    kept = [part for part in parts if not re.match(rf"\[{section}[].]", part)]
    assert len(kept) < len(parts)
    file.write_text("".join(kept), "utf-8")
    named = r"\[chip\]: name must be" if section == "chip" else rf"section \[{section}\] is missing"
    with pytest.raises(HardwareError, match=rf"v9.toml.*{named}"):
        ts.load_chip(file)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"listed": '["2x2", "2x2x2"]'}, "v9: listed has shapes of different dimensions"),
        ({"listed": '"2x2x2"'}, r"\[slices.listed\] is '2x2x2'; write a list of shapes"),
        ({"listed": '["2*2"]'}, "'2.2' is not a topology"),
        ({"prefixes": "[]"}, r"\[slices.prefixes\] is \[\]; write a list of names"),
        ({"twistable": '"yes"'}, r"\[slices.twistable\] is 'yes'; write true or false"),
        ({"max_cubes": "-1"}, "slices of v9: max_cubes is -1; write a finite number not below"),
        ({"mesh_order": '"rings"'}, "compiler: mesh_order is 'rings'; did you mean 'small rings'"),
        ({"mesh_order": "3"}, r"\[compiler.mesh_order\] is 3; write a word in quotes"),
        ({"on_chip_room": '"12"'}, r"compiler.on_chip_room.*12"),
        ({"compile_time": "0"}, "compiler: compile_time is 0; write a finite number above zero"),
        ({"max_cubes": "true"}, r"\[slices.max_cubes\] is True; write a whole number"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(
    changes: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(HardwareError, match=sentence):
        ts.load_chip(written(tmp_path, **changes))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"v9.toml: cannot be read: No such file"):
        ts.load_chip(tmp_path / "v9.toml")
