"""HLO as jaxlib's parser finds it, as a module: from text, protos, gzip and tpusim's own files."""

import gzip
from dataclasses import replace

import pytest
from compiler_parts import callees, format_header, op_name, read_hlo_file
from hlo import F32, REAL, main_of

from tpusim.compiler.hlo.check import UNSCHEDULED
from tpusim.compiler.hlo.hlo_files import assigned_devices
from tpusim.compiler.hlo.module_text import read_frames
from tpusim.compiler.hlo.read import build_module, read_module

jaxlib = pytest.importorskip("jaxlib.xla_client")

FUSED = f"""
%scaled (a: f32[256,256]) -> f32[256,256] {{
  %a = {F32} parameter(0)
  ROOT %twice = {F32} add(%a, %a)
}}
"""
CALL = f'ROOT %f = {F32} fusion(%p), kind=kLoop, calls=%scaled, metadata={{op_name="jit(f)/mul"}}'


def test_computations_instructions_and_what_they_say():
    found = main_of(CALL, FUSED)
    assert list(found.computations) == ["scaled", "main"]
    assert (found.name, found.entry, found.scheduled, found.devices) == ("by_hand", "main", True, 1)
    fusion = found.main["f"]
    assert (fusion.opcode, fusion.operands, found.main.root) == ("fusion", ("p",), "f")
    assert (callees(fusion), op_name(fusion)) == (("scaled",), "jit(f)/mul")
    assert fusion.arrays[0].tiles == ((8, 128),)
    assert [p.literal for p in found.main.parameters] == ["0"]


def test_names_of_the_user_s_code_are_no_calls():
    found = main_of(f'ROOT %n = {F32} negate(%p), metadata={{op_name="while, body=layer"}}')
    assert callees(found.main["n"]) == ()


def test_the_root_is_the_one_that_is_marked_and_not_the_last():
    found = main_of(f"ROOT %r = {F32} negate(%p)\n  %late = {F32} add(%p, %p)")
    assert found.main.root == "r"


def test_devices_are_partitions_times_replicas():
    head = ", is_scheduled=true, replica_count=3, num_partitions=4"
    assert main_of(f"ROOT %r = {F32} negate(%p)", head=head).devices == 12


def test_outputs_that_take_the_memory_of_a_parameter():
    head = ", is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }"
    assert main_of(f"ROOT %r = {F32} negate(%p)", head=head).aliases == {(): (0, ())}


def test_constants_keep_their_literal_and_comments_in_shapes_do_no_harm():
    found = main_of(
        f"%n = s32[]{{:T(128)}} constant(64)\n"
        f"  %t = (s32[]{{:T(128)}}, /*index=1*/{F32}) tuple(%n, %p)\n"
        f"  ROOT %r = {F32} get-tuple-element(%t), index=1"
    )
    assert found.main["n"].literal == "64"
    assert [str(array) for array in found.main["t"].arrays] == ["s32[]", "f32[256,256]"]


def test_a_proto_an_hloproto_and_gzip_give_the_module_of_the_text(tmp_path):
    plain = gzip.decompress(REAL.read_bytes())
    proto = jaxlib.hlo.hlo_module_from_text(plain.decode()).as_serialized_hlo_module_proto()
    whole = b"\n" + _varint(len(proto)) + proto
    of_text = read_module(plain)
    assert read_module(REAL.read_bytes()) == of_text
    for data in (proto, whole, gzip.compress(whole)):
        found = read_module(data)
        assert _orders(found) == _orders(of_text)
        assert found.scheduled
        assert found.aliases == of_text.aliases


def test_a_proto_has_the_devices_that_it_is_assigned_to():
    """A profiler's has, and jaxlib's text of it does not."""
    plain = gzip.decompress(REAL.read_bytes())
    proto = jaxlib.hlo.hlo_module_from_text(plain.decode()).as_serialized_hlo_module_proto()
    assert read_module(proto).devices == 1
    for replicas, partitions in ((1, 4), (2, 2), (1, 256)):
        counts = b"\x08" + _varint(replicas) + b"\x10" + _varint(partitions)
        for each in range(partitions):
            ids = b"".join(_varint(each * replicas + replica) for replica in range(replicas))
            ids = b"\n" + _varint(len(ids)) + ids
            counts += b"\x1a" + _varint(len(ids)) + ids
        found = read_module(proto + b"\x7a" + _varint(len(counts)) + counts)
        assert (found.devices, found.replicas) == (replicas * partitions, replicas)
    for broken in (b"\x7a", b"\x7a\x05\x08", b"\x78\x04", b"\x7a\x04\x08\x00\x10\x04"):
        assert assigned_devices(b"\0" + proto + broken) == (1, 1)


def _orders(found):
    return {
        name: [(i.name, i.opcode, i.shape_text, i.operands) for i in computation.instructions]
        for name, computation in found.computations.items()
    }


def _varint(number):
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def test_a_file_of_tpusim_has_its_header(tmp_path):
    facts = {"slice": "v5e:2x2", "note": "two\nlines"}
    plain = gzip.decompress(REAL.read_bytes())
    saved = tmp_path / "saved"
    saved.write_bytes(gzip.compress(format_header(facts).encode() + plain))
    header, data = read_hlo_file(saved)
    assert header == facts
    assert read_module(data) == read_module(saved.read_bytes()) == read_module(plain)
    assert read_hlo_file(REAL) == (None, plain)


def test_the_user_s_own_lines_of_a_real_program():
    found = read_module(REAL.read_bytes())
    lines = {str(stack[0]) for stack in found.frames.values() if stack}
    assert "scan_mlp.py:26" in lines


def test_a_stack_begins_with_its_innermost_frame_and_ends_where_it_turns_to_itself():
    tables = (
        'FileNames\n1 "/home/me/model.py"\n\nFunctionNames\n1 "layer"\n2 "main"\n\nFileLocations\n'
        "1 {file_name_id=1 function_name_id=1 line=7}\n2 {file_name_id=1 function_name_id=2 line=9}"
        "\n\nStackFrames\n1 {file_location_id=2 parent_frame_id=1}\n"
        "2 {file_location_id=1 parent_frame_id=2}\n3 {file_location_id=1 parent_frame_id=4}\n"
    )
    frames = read_frames(tables)
    assert [str(frame) for frame in frames[2]] == ["model.py:7", "model.py:9"]
    assert [frame.function for frame in frames[3]] == ["layer"]


def test_unscheduled_hlo_is_read_with_a_note():
    found = main_of(CALL, FUSED, head="")
    assert not found.scheduled
    assert found.notes == (UNSCHEDULED,)
    assert not main_of(CALL, FUSED).notes


def _text(name, *instructions):
    """A computation as jaxlib prints it, of instructions without their shapes."""
    lines = [f"  %{each.replace(' = ', f' = {F32} ', 1)}" for each in instructions]
    return "\n".join([f"%{name} {{", *lines[:-1], lines[-1].replace("%", "ROOT %", 1), "}", ""])


def _module(*computations):
    return build_module(
        "m", "\n".join(["HloModule m", "", *computations[:-1], f"ENTRY {computations[-1]}"])
    )


def test_instructions_without_an_order_follow_their_operands_else_the_text():
    found = _module(
        _text(
            "main",
            "c = negate(%a)",
            "a = parameter(0)",
            "e = parameter(1)",
            "b = negate(%a)",
            "d = add(%b, %c)",
        )
    )
    assert [i.name for i in found.main.instructions] == ["a", "c", "e", "b", "d"]


@pytest.mark.parametrize(
    ("instructions", "sentence"),
    [
        (["a = negate(%b)", "b = negate(%a)"], "a of main depends on its own"),
        (["a = negate(%gone)"], "a of main reads gone, which does not exist"),
        (["a = negate"], r"a = f32\[256,256\].* negate: not understood"),
        (["a = negate(%b"], r"a = f32\[256,256\].* negate\(%b: not understood"),
    ],
)
def test_instructions_that_cannot_be(instructions, sentence):
    with pytest.raises(OSError, match=sentence):
        _module(_text("main", *instructions))


@pytest.mark.parametrize("gone", ["ROOT ", "\n}"])
def test_a_computation_without_its_root_or_end_is_refused(gone):
    text = f"HloModule m\n\nENTRY {_text('main', 'a = parameter(0)')}"
    with pytest.raises(OSError, match="computation main has no end or no ROOT"):
        build_module("m", text.replace(gone, ""))


def test_attributes_may_go_over_lines_and_literals_have_parentheses():
    found = _module(
        _text(
            "main",
            "c = constant((1, 2))",
            'a = custom-call(%c), attributes={k={\n"v": 1\n}}',
            "b = negate(%a)",
        )
    )
    assert [(i.name, i.operands, i.literal) for i in found.main.instructions] == [
        ("c", (), "(1, 2)"),
        ("a", ("c",), ""),
        ("b", ("a",), ""),
    ]
    assert found.main["a"].attributes == ', attributes={k={\n"v": 1\n}}'


def test_a_computation_that_calls_itself_is_refused():
    two = _text("one", "x = call(), to_apply=%two"), _text("two", "y = call(), to_apply=%one")
    with pytest.raises(OSError, match=r"(one calls two calls one|two calls one calls two), which"):
        _module(*two, _text("main", "a = parameter(0)"))


def test_computations_that_call_too_deep_are_refused():
    deep = [
        _text(f"c{depth}", f"x{depth} = call(), to_apply=%c{depth + 1}") for depth in range(2000)
    ]
    with pytest.raises(OSError, match=r"c0 nests 200[01] calls"):
        _module(*deep, _text("main", "a = parameter(0)"))


def test_modules_are_data():
    found = main_of(CALL, FUSED)
    assert replace(found, name="other") != found
