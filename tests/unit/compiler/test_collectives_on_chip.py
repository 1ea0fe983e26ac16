"""Replayed collectives draw on HBM for what of them lies there, and not in VMEM.

A gather of 64 MiB over a ring of four v5e chips, and beside it a negation that HBM alone holds up.
"""

from functools import cache

import pytest
from compiler_parts import DeviceIds, translate_module
from hlo import module_of

from tpusim.costs import CostedProgram, Task, alone_seconds, cost_program
from tpusim.engine import run
from tpusim.hardware import parse_slice

POD = parse_slice("v5e:2x2")
TEXT = """HloModule step, is_scheduled=true, num_partitions=4

ENTRY %main (p: f32[4096,1024], q: f32[8192,8192]) -> (f32[16384,1024], f32[8192,8192]) {
  %p = f32[4096,1024]{1,0:T(8,128)} parameter(0)
  %q = f32[8192,8192]{1,0:T(8,128)} parameter(1)
  %c = f32[4096,1024]{1,0:T(8,128)IN} copy(%p)
  %s = (f32[4096,1024]{1,0:T(8,128)IN}, f32[16384,1024]{1,0:T(8,128)OUT}) all-gather-start(%c), channel_id=1, replica_groups={{0,1,3,2}}, dimensions={0}, use_global_device_ids=true
  %n = f32[8192,8192]{1,0:T(8,128)} negate(%q)
  %d = f32[16384,1024]{1,0:T(8,128)OUT} all-gather-done(%s)
  %e = f32[16384,1024]{1,0:T(8,128)} copy(%d)
  ROOT %t = (f32[16384,1024]{1,0:T(8,128)}, f32[8192,8192]{1,0:T(8,128)}) tuple(%e, %n)
}
"""  # noqa: E501


@cache
def costed(operand: str, result: str) -> CostedProgram:
    module = module_of(TEXT.replace("IN", operand).replace("OUT", result))
    found = translate_module(module, POD, DeviceIds.in_order(POD))
    return cost_program(found.program, POD, found.placement)


def task(program: CostedProgram, name: str) -> Task:
    (found,) = (op for op in program.body if isinstance(op, Task) and op.name == name)
    return found


@pytest.mark.parametrize(
    ("operand", "result", "drawn"),
    [("", "", 2 * 3 / 4), ("S(1)", "", 2 * 3 / 4 - 1 / 4), ("", "S(1)", 1 / 4)],
)
def test_a_gather_draws_what_lies_in_hbm(operand: str, result: str, drawn: float) -> None:
    """It writes three shards of four where the result lies, and reads two again; one is its own."""
    found = task(costed(operand, result), "s")
    touched = found.bytes * dict(found.uses)["hbm"]
    assert touched == pytest.approx(drawn * 64 * 2**20, rel=0.05)


def test_on_the_chip_it_slows_nothing_that_hbm_holds_up() -> None:
    times = {}
    for place in ("", "S(1)"):
        program = costed(place, place)
        timeline = run([program])
        links = dict(program.links)
        (negated,) = (record for record in timeline.tasks if record.name == "n")
        alone = alone_seconds(task(program, "n"), links)
        assert alone_seconds(task(program, "s"), links) < alone
        times[place] = (negated.end_ps - negated.start_ps) * 1e-12 / alone
    assert "hbm" not in dict(task(costed("S(1)", "S(1)"), "s").uses)
    assert times["S(1)"] == pytest.approx(1, rel=1e-4)
    assert 1.02 < times[""] < 1.3
