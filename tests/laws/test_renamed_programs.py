"""Names carry no meaning: a compiled program under other names has the same numbers."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from compiler_parts import DeviceIds
from extent import thorough
from renamed_programs import STORED, numbers, renamed, stored

import tpusim as ts
from tpusim.compiler import Compiled

pytest.importorskip("jaxlib", reason="reading HLO needs the extra `xla`")


@cache
def under_own_names(number: int) -> Any:
    return numbers(stored(number))


@pytest.mark.parametrize(
    "case", [case if case % 97 == 0 else thorough(case) for case in range(8 * len(STORED))]
)
def test_renaming_changes_no_number(case: int) -> None:
    """Each stored program under eight sets of names."""
    number = case % len(STORED)
    program = renamed(stored(number), random.Random(f"names {case}"))
    found, wanted = numbers(program), under_own_names(number)
    for key, value in wanted.items():
        assert found[key] == value, (STORED[number].name, program.mesh, key)


GATHER = """HloModule jit_step, is_scheduled=true, num_partitions=8

ENTRY %main (p: bf16[2048,16384]) -> bf16[16384,16384] {
  %p = bf16[2048,16384]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather = bf16[16384,16384]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=1,
    replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true
}
"""


@pytest.mark.parametrize("axes", [("x", "y"), ("y", "x"), ("a", "b"), ("z", "dcn_z")])
def test_a_gather_over_both_axes_takes_both_dimensions_of_the_torus(axes: tuple[str, str]) -> None:
    """Axes of 4 and 2 on v5e:2x4, as jax#21562 has them; over y alone it would take 8.95 ms."""
    pod = ts.Slice("v5e", "2x4")
    ring = DeviceIds.on_mesh({"outer": 4, "inner": 2}, pod).coordinates.tolist()
    program = Compiled(
        name="step",
        data=GATHER.replace("\n    ", " ").encode(),
        slice=pod,
        devices=tuple((at, x, y, 0, core) for at, x, y, core in ring),
        mesh=tuple(zip(axes, (4, 2), strict=True)),
    )
    result = ts.simulate(program)
    assert result.step_time_s == pytest.approx(5.226e-3, rel=1e-3)
    assert sorted(result.placement.written.values()) == [["x"], ["y"]]


@pytest.mark.parametrize("axes", [("x", "y"), ("y", "x"), None])
def test_the_mesh_is_not_known_only_where_there_is_none(axes: tuple[str, str] | None) -> None:
    """Its axes may lie on the dimensions of their names."""
    number = next(at for at, path in enumerate(STORED) if path.name == "moe_v6e_4x4.hlo.gz")
    mesh = axes and tuple((axis, 4) for axis in axes)
    placement = dict(ts.simulate(replace(stored(number), mesh=mesh)).about())["placement"]
    wanted = f"{axes[0]}=4 on y · {axes[1]}=4 on x" if axes else "as its mesh is not known"
    assert wanted in placement
