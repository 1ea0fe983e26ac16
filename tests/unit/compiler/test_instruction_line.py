"""Single lines of HLO, as profilers record them."""

import pytest
from scripts import EXPERIMENTS, script

read_instruction = script(EXPERIMENTS / "operations/instruction_line.py").read_instruction


LINE = (
    "%fusion.6 = (f32[1024]{0:T(1024)S(1)}, bf16[8,128]{1,0:T(8,128)(2,1)}) "
    "fusion(bf16[8,128]{1,0:T(8,128)(2,1)S(1)} %copy.2, s32[]{:T(128)S(6)} %at), "
    "kind=kLoop, calls=%fused"
)


def test_a_line_is_an_instruction_and_its_operands() -> None:
    found = read_instruction(LINE)
    made = found.instruction
    assert (made.name, made.opcode, found.rest) == ("fusion.6", "fusion", "")
    assert [str(shape) for shape in made.arrays] == ["f32[1024]", "bf16[8,128]"]
    assert [str(each.arrays[0]) for each in found.operands] == ["bf16[8,128]", "s32[]"]
    assert made.attributes == "kind=kLoop, calls=%fused"


def test_its_module_runs_it_alone() -> None:
    module = read_instruction(LINE).module(devices=2)
    main = module.main
    assert main.root == "fusion.6"
    assert len(main.operands(main[main.root])) == len(main.parameters) == 2


def test_names_may_be_missing() -> None:
    found = read_instruction("% = f32[8]{0} negate(f32[8]{0} %)")
    assert (found.instruction.opcode, len(found.operands)) == ("negate", 1)


@pytest.mark.parametrize("length", range(92, len(LINE)))
def test_a_line_that_was_cut_has_the_operands_that_are_whole(length: int) -> None:
    found = read_instruction(LINE[:length])
    whole = [", s32" in LINE[:length], ")," in LINE[100:length]]
    assert len(found.operands) >= sum(whole)
    assert all(each.arrays for each in found.operands)


@pytest.mark.parametrize("text", ["", "%a", "%a = ", "%a = f32[8]{0}", "%a = f32[8] 7(", "no HLO"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HLO|opcode"):
        read_instruction(text)
