"""The tensors of collectives that the compiler merged, and the line of each."""

import pytest
from compiler_parts import DeviceIds, translate_module
from hlo import module_of

from tpusim.base import Phase
from tpusim.hardware import parse_slice
from tpusim.program import Collective, CollectivePart, walk_ops

GRADIENT = 'op_name="jit(step)/transpose(jvp(mlp))/{}/dot_general" source_file="/at/step.py"'
TEXT = f"""HloModule step, is_scheduled=true, num_partitions=4

%add (l: f32[], r: f32[]) -> f32[] {{
  %l = f32[] parameter(0)
  %r = f32[] parameter(1)
  ROOT %s = f32[] add(%l, %r)
}}

ENTRY %main (p: f32[256,256]) -> f32[256,256] {{
  %p = f32[256,256]{{1,0:T(8,128)}} parameter(0)
  %wi = f32[256,256]{{1,0:T(8,128)}} negate(%p), metadata={{{GRADIENT.format("wi")} source_line=7}}
  %wo = f32[8,256]{{1,0:T(8,128)}} slice(%p), slice={{[0:8], [0:256]}}, metadata={{{GRADIENT.format("wo")} source_line=9}}
  %copy = f32[8,256]{{1,0:T(8,128)}} copy(%wo)
  %both = (f32[256,256]{{1,0:T(8,128)}}, f32[8,256]{{1,0:T(8,128)}}) all-reduce(%wi, %copy), channel_id=1, replica_groups={{{{0,1,2,3}}}}, use_global_device_ids=true, to_apply=%add, metadata={{{GRADIENT.format("wi")} source_line=7}}
  %first = f32[256,256]{{1,0:T(8,128)}} get-tuple-element(%both), index=0
  %alone = f32[256,256]{{1,0:T(8,128)}} all-reduce(%first), channel_id=2, replica_groups={{{{0,1,2,3}}}}, use_global_device_ids=true, to_apply=%add
  ROOT %out = f32[256,256]{{1,0:T(8,128)}} negate(%alone)
}}
"""  # noqa: E501


def collectives(text: str = TEXT) -> dict[str, Collective]:
    pod = parse_slice("v5e:2x2")
    body = translate_module(module_of(text), pod, DeviceIds.in_order(pod)).program.body
    return {op.name: op for op, _ in walk_ops(body) if isinstance(op, Collective)}


def test_each_tensor_of_a_merged_collective_has_its_own_line_and_bytes() -> None:
    both = collectives()["both"]
    assert both.phase is Phase.BACKWARD
    assert both.parts == (
        CollectivePart("mlp/wi/dot_general", 4 * 256 * 256, "step.py:7"),
        CollectivePart("mlp/wo/dot_general", 4 * 8 * 256, "step.py:9"),
    )
    assert sum(part.bytes for part in both.parts) == both.bytes


def test_each_tensor_has_its_own_padding() -> None:
    both = collectives(TEXT.replace("[8,256]", "[6,256]").replace("[0:8]", "[0:6]"))["both"]
    assert [part.padded for part in both.parts] == pytest.approx([0, 4 * 2 * 256])
    assert both.bytes == 4 * (256 + 8) * 256
    assert both.padded == pytest.approx(4 * 2 * 256)


def test_a_collective_of_one_tensor_has_no_parts() -> None:
    assert collectives()["alone"].parts == ()
