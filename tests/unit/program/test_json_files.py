"""Programs as JSON: an exact round trip, and a sentence for what is not a program."""

import json

import numpy as np
import pytest
from pipelines import programs_of
from plans import ENCODER_480B, PLAN_480B, plan_of, program_of, small, v4_2048

from tpusim.base import FileError
from tpusim.hardware import Slice
from tpusim.plan import make_schedule
from tpusim.program import (
    Alloc,
    Barrier,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Flops,
    Loop,
    MatmulWork,
    Mode,
    Phase,
    Program,
    Transfer,
    TransferKind,
    VectorWork,
    dumps,
    loads,
    walk_ops,
)

BODY = (
    Compute(
        name="one", phase=Phase.FORWARD, scope="layer/one", flops=Flops(2**70, 0, 0.0, 1),
        work=MatmulWork(1, 0.1, 2**63 + 1, 1e300, "bf16", 1 / 3, 5),
        allocs=(Alloc("t", 8, "activations", 0.5),),
    ),
    Loop(
        name="loop", trips=3,
        body=(
            Collective(
                name="two", phase=Phase.BACKWARD, kind=CollectiveKind.ALL_REDUCE, axes=("a", "b"),
                bytes=7.5, dtype="bf16", mode=Mode.ASYNC, algorithm="nd", asked=False,
                deps=(Dep("one"), Dep("two", 1)), frees=("t",),
            ),
            Transfer(name="three", phase=Phase.OPTIMIZER, kind=TransferKind.TO_HOST, bytes=3),
        ),
    ),
    Barrier(name="four", phase=Phase.BACKWARD, axes=("b",), deps=(Dep("two"),)),
)  # fmt: skip
PROGRAM = Program(
    name="p", axes=(("a", 2), ("b", 3)), body=BODY, resident=(Alloc("w", 1, "weights"),)
)


def test_a_program_comes_back_as_it_was() -> None:
    back = loads(dumps(PROGRAM))
    assert back == PROGRAM
    assert dumps(back) == dumps(PROGRAM)
    assert isinstance(back.body[1].body[0].mode, Mode)


def test_a_barrier_prints_the_axes_whose_slices_wait() -> None:
    assert str(PROGRAM).splitlines()[-1] == "  backward  barrier b  four"


def test_an_integer_stays_one_and_a_float_too() -> None:
    work = loads(dumps(PROGRAM)).body[0].work
    assert [type(n) for n in (work.batch, work.m, work.k, work.n)] == [int, float, int, float]
    flops = loads(dumps(PROGRAM)).body[0].flops
    assert [type(n) for n in (flops.model, flops.recompute, flops.redundant)] == [int, int, float]


@pytest.mark.parametrize("style", ["plain", "maxtext"])
def test_partitioned_programs_come_back(style: str) -> None:
    plan = plan_of({"data": 2, "fsdp": 2, "tensor": 4}, style=style, lowering="ideal")
    program = program_of(small(), plan, Slice("v4", "2x2x4"))
    assert loads(dumps(program)) == program


def test_the_flagship_comes_back() -> None:
    program = program_of(ENCODER_480B, PLAN_480B, v4_2048())
    assert loads(dumps(program)) == program


def test_a_program_of_many_plans_comes_back() -> None:
    work = VectorWork(np.array([1.0, 2.0]), 3, np.array([0.1, 1e30]))
    op = Compute(name="many", phase=Phase.FORWARD, work=work)
    (back,) = loads(dumps(Program(name="p", axes=(), body=(op,)))).body
    assert back.work.read_bytes.tolist() == [1.0, 2.0]
    assert back.work.flops.tolist() == [0.1, 1e30]
    assert back.work.write_bytes == 3


def edited(**changes: object) -> str:
    tree = json.loads(dumps(PROGRAM))
    first = {key: item for key, item in (tree["body"][0] | changes).items() if item is not None}
    return json.dumps(tree | {"body": [first]})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the program is not JSON: Expecting value: line 1 column 1"),
        ("[1,", "the program is not JSON: Expecting value: line 1 column 4"),
        ("[" * 100_000, "the program is nested too deeply"),
        ("[]", r"program is \[\]; it must be an object whose type is Program"),
        ('{"type": "Compute"}', "program is 'Compute'; it must be an object whose type is Program"),
        ('{"type": "Program", "name": "p"}', "program lacks the field 'axes' of Program"),
        (edited(type="Colective"), r"program.body\[0\] is 'Colective'; it must be an object whose"),
        (edited(wrok=1), r"program.body\[0\].wrok is no field of Compute: did you mean 'work'\?"),
        (edited(name=3), r"program.body\[0\].name is 3; it must be of type str"),
        (edited(name=None), r"program.body\[0\] lacks the field 'name' of Compute"),
        (edited(phase="forwards"), r"body\[0\].phase is 'forwards', no Phase: did you mean 'for"),
        (edited(phase=[]), r"body\[0\].phase is \[\], no Phase: valid are"),
        (edited(deps={}), r"program.body\[0\].deps is {}; it must be a list"),
        (edited(flops={"type": "Flops", "model": "7"}), r"flops.model is '7'; it must be a number"),
        (edited(flops={"type": "Flops", "model": True}), "flops.model is True; it must be a numb"),
        (edited(flops={"type": "Flops", "model": float("nan")}), "the program has the number NaN"),
        (
            json.dumps(json.loads(dumps(PROGRAM)) | {"axes": [["a", 2, 3]]}),
            r"program.axes\[0\] is \['a', 2, 3\]; it must be a list of 2",
        ),
        (
            json.dumps(json.loads(dumps(PROGRAM)) | {"axes": [["a", 2.0]]}),
            r"program.axes\[0\]\[1\] is 2.0; it must be of type int",
        ),
    ],
)  # fmt: skip
def test_what_is_no_program_is_answered_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(FileError, match=sentence) as raised:
        loads(text)
    assert "\n" not in str(raised.value)


def test_a_number_that_is_not_finite_is_not_written() -> None:
    op = Compute(name="bad", phase=Phase.FORWARD, work=VectorWork(float("inf"), 0, 0))
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(Program(name="p", axes=(), body=(op,)))


def test_a_pipelines_stages_come_back_as_they_were() -> None:
    for schedule in (
        make_schedule("1f1b", 3, 4),
        make_schedule("interleaved", 2, 4, 2),
        make_schedule("zb-h2", 2, 4),
    ):
        for program in programs_of(schedule):
            assert loads(dumps(program)) == program


def test_a_stage_prints_its_segments_and_the_order_of_their_calls() -> None:
    assert (
        str(programs_of(make_schedule("1f1b", 4, 8))[1])
        == """\
program stage 1 on stage=4; resident: nothing
  segment F.0 x8
    forward   matmul [1024, 4096, 4096] bf16                 F.0 product
    send to stage 2 over stage: 1 MiB bf16 x8
  segment B.0 x8
    backward  matmul [1024, 4096, 4096] bf16                 B.0 product
    send to stage 0 over stage: 1 MiB bf16 x8
  calls F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7
  optimizer vector 1.91 MiB                                update"""
    )


def test_counted_goes_through_a_segment_once() -> None:
    program = programs_of(make_schedule("1f1b", 4, 8))[0]
    found = [(op.name, times) for op, times in walk_ops(program.body, program.segments)]
    assert found == [("F.0 product", 8), ("B.0 product", 8), ("update", 1)]
