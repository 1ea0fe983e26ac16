"""Which branch of a conditional is taken for the one that counts."""

import pytest
from hlo_lines import module

from tpusim.compiler.to_program.branches import costliest_branch

ARRAY = "f32[1024,1024]{1,0}"
PARTS = f"""
added
x = f32[] parameter(0)
* y = f32[] negate(x)

condition
c = (s32[], {ARRAY}) parameter(0)
i = s32[] get-tuple-element(c), index=0
n = s32[] constant(100)
* l = pred[] compare(i, n), direction=LT

body
b = (s32[], {ARRAY}) parameter(0)
j = s32[] get-tuple-element(b), index=0
x = {ARRAY} get-tuple-element(b), index=1
one = s32[] constant(1)
k = s32[] add(j, one)
y = {ARRAY} negate(x)
* t = (s32[], {ARRAY}) tuple(k, y)

loops
p = {ARRAY} parameter(0)
zero = s32[] constant(0)
s = (s32[], {ARRAY}) tuple(zero, p)
w = (s32[], {ARRAY}) while(s), condition=%condition, body=%body
* o = {ARRAY} get-tuple-element(w), index=1

reduces
p = {ARRAY} parameter(0)
* r = {ARRAY} all-reduce(p), channel_id=1, replica_groups={{{{0}}}}, to_apply=%added

copies
p = {ARRAY} parameter(0)
q = {ARRAY} copy(p)
* r = {ARRAY} copy(q)

multiplies
p = {ARRAY} parameter(0)
* r = {ARRAY} negate(p), backend_config={{"estimated_cycles":"30000"}}
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [("copies", "loops"), ("copies", "reduces"), ("copies", "multiplies"), ("multiplies", "loops")],
)
def test_loops_collectives_and_cycles_weigh_what_they_take(one: str, other: str) -> None:
    call = f"* c = {ARRAY} conditional(q, a, a), branch_computations={{%{one}, %{other}}}"
    made = module(f"{PARTS}\nmain\nq = s32[] parameter(0)\na = {ARRAY} parameter(1)\n{call}")
    said: list[str] = []
    assert costliest_branch(made, made.main["c"], said.append) == (other,)
    assert said == [f"conditional c runs {other}, the costliest of its 2 branches"]
