"""Placements as text: what results and frames write is what a plan and a run file read."""

from pathlib import Path

import pytest
from commands import SMALL
from plans import plan_of, small

from tpusim.base import PlanError
from tpusim.hardware import Slice, placement_from, placements
from tpusim.runfile import read_run
from tpusim.simulation import simulate

SHAPES = (("v4", "4x4x4"), ("v5e", "4x4"), ("7x", "2x2x4"), ("v5p", "4x4x8"))


@pytest.mark.parametrize(("chip", "shape"), SHAPES)
@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_every_placement_is_read_as_it_is_written(chip: str, shape: str, tensor: int) -> None:
    pod = Slice(chip, shape)
    mesh = {"fsdp": pod.devices // tensor, "tensor": tensor}
    for placement in placements(pod, mesh):
        plan = plan_of(mesh, placement=str(placement))
        assert plan == plan_of(mesh, placement=placement.written or None)
        if plan.placement is not None:
            assert placement_from(pod, mesh, plan.placement) == placement


@pytest.mark.parametrize(
    "text",
    ["fsdp=4 on x · tensor=4 on y", "fsdp on x; tensor on y", " fsdp on x;tensor = 4 on y ",
     "tensor on y · fsdp on x"],
)  # fmt: skip
def test_a_person_s_spelling_is_the_table_s(text: str) -> None:
    mesh = {"fsdp": 4, "tensor": 4}
    plan = plan_of(mesh, placement=text)
    assert plan == plan_of(mesh, placement={"fsdp": ["x"], "tensor": ["y"]})
    result = simulate(small(), plan, Slice("v5e", "4x4"))
    assert str(result.placement) == "fsdp=4 on x · tensor=4 on y"


@pytest.mark.parametrize("text", ["", "  "])
def test_no_text_is_no_placement(text: str) -> None:
    assert plan_of({"fsdp": 4}, placement=text).placement is None


BAD = [
    ("x", "plan.placement is 'x', of which 'x' is no axis on dimensions of the torus; write for "),
    ("fsdp on x; tensor", "of which 'tensor' is no axis on dimensions"),
    ("fsdp on x;", "of which '' is no axis"),
    ("fsdp on x; fsdp on y", "which has fsdp twice; write all of its parts at once"),
    ("fsdp=8 on x", "plan.placement has fsdp=8, but plan.mesh has fsdp=4; give the placement of"),
]


@pytest.mark.parametrize(("text", "sentence"), BAD)
def test_a_text_that_is_no_placement_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        plan_of({"fsdp": 4, "tensor": 4}, placement=text)


def test_a_run_file_reads_it(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(SMALL, "utf-8")
    settings = ["plan.mesh={ fsdp = 4, tensor = 4 }", "plan.placement='fsdp on x; tensor on y'"]
    run = read_run(tmp_path / "run.toml", settings)
    assert run.plan.placement == {"fsdp": ["x"], "tensor": ["y"]}
    with pytest.raises(PlanError, match=r"plan.placement is 3; write torus dimensions, .* text"):
        read_run(tmp_path / "run.toml", [settings[0], "plan.placement=3"])
