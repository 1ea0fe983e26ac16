"""HBM over a schedule: what takes memory, what lies in that of another, and the peak."""

import gzip
import re
from collections.abc import Mapping

import pytest
from compiler_parts import Computation, HloModule, callees, read_hlo_file, read_module
from extent import sample
from hlo import DATA, F32, REAL, main_of, module_of

from tpusim.compiler.to_program.buffers import CALLING_OPCODES
from tpusim.compiler.to_program.memory_profile import (
    OUTPUTS,
    BufferChange,
    argument_allocs,
    buffer_changes,
)

pytest.importorskip("jaxlib.xla_client")

K = 1024
ONE = 256 * K
"""Bytes of a f32[256,256]."""

S32 = "s32[]{:T(128)}"
VMEM = F32.replace(")}", ")S(1)}")
STACK = "f32[8,256,256]{2,1,0:T(8,128)}"


def peak_bytes(module: HloModule, found: Mapping[str, BufferChange] | None = None) -> float:
    """Return the peak of the schedule without arguments; a loop holds what one iteration does."""
    known: dict[str, float] = {}
    return _peak(module, module.main, buffer_changes(module) if found is None else found, known)


def _peak(
    module: HloModule,
    computation: Computation,
    found: Mapping[str, BufferChange],
    known: dict[str, float],
) -> float:
    sizes: dict[str, float] = {}
    live = highest = 0.0
    for instruction in computation.instructions:
        change = found.get(instruction.name, BufferChange())
        sizes |= {alloc.tensor: float(alloc.bytes) for alloc in change.allocs}
        live += sum(float(alloc.bytes) for alloc in change.allocs)
        inner = 0.0
        for name in callees(instruction) if instruction.opcode in CALLING_OPCODES else ():
            if name not in known:
                known[name] = _peak(module, module.computations[name], found, known)
            inner = max(inner, known[name])
        highest = max(highest, live + inner)
        live -= sum(sizes[name] for name in change.frees)
    return highest


def test_a_temporary_is_taken_by_its_writer_and_freed_by_its_last_reader():
    module = main_of(
        f"%a = {F32} negate(%p)\n  %b = {F32} add(%a, %p)\n  ROOT %c = {F32} multiply(%a, %b)"
    )
    found = buffer_changes(module)
    assert [alloc.tensor for alloc in found["a"].allocs] == ["a"]
    assert set(found["c"].frees) == {"a", "b"}
    assert found["c"].allocs[0].category == OUTPUTS
    assert peak_bytes(module, found) == 3 * ONE
    assert [(a.tensor, a.bytes) for a in argument_allocs(module)] == [("p", ONE)]


def test_what_nobody_reads_is_freed_by_its_writer():
    found = buffer_changes(main_of(f"%a = {F32} negate(%p)\n  ROOT %c = {F32} negate(%p)"))
    assert found["a"] == BufferChange(found["a"].allocs, ("a",))


def test_names_for_what_is_there_take_nothing_and_keep_it():
    module = main_of(
        f"%a = {F32} negate(%p)\n  %t = ({F32}, {F32}) tuple(%p, %a)\n"
        f"  %g = {F32} get-tuple-element(%t), index=1\n"
        f"  %v = f32[65536]{{0:T(1024)}} bitcast(%g)\n"
        f"  %n = f32[65536]{{0:T(1024)}} negate(%v)\n  ROOT %r = {F32} bitcast(%n)"
    )
    found = buffer_changes(module)
    assert set(found) == {"a", "n"}
    assert found["n"].frees == ("a",)


def test_memory_on_the_chip_and_of_the_host_is_not_hbm():
    host = F32.replace(")}", ")S(5)}")
    module = main_of(
        f"%s = ({VMEM}, {F32}, u32[]{{:S(2)}}) copy-start(%p)\n  %v = {VMEM} copy-done(%s)\n"
        f"  %t = ({host}, {VMEM}, u32[]{{:S(2)}}) copy-start(%v)\n  %h = {host} copy-done(%t)\n"
        f"  ROOT %r = {F32} add(%v, %v)"
    )
    assert set(buffer_changes(module)) == {"r"}


def test_padding_of_tiles_is_taken_too():
    module = main_of(
        f"%n = f32[256,8]{{1,0:T(8,128)}} slice(%p), slice={{[0:256], [0:8]}}\n"
        f'  ROOT %r = {F32} custom-call(%n), custom_call_target="x"'
    )
    (alloc,) = buffer_changes(module)["n"].allocs
    assert (alloc.bytes, alloc.padded) == (256 * 128 * 4, 256 * 120 * 4)


def test_an_asynchronous_gather_holds_its_result_from_the_start_and_its_operand_to_the_end():
    module = main_of(
        f"%a = {F32} negate(%p)\n"
        f"  %s = ({F32}, f32[512,256]{{1,0:T(8,128)}}) all-gather-start(%a), dimensions={{0}}, "
        "replica_groups={{0,1}}\n"
        f"  %w = {F32} negate(%p)\n"
        f"  %d = f32[512,256]{{1,0:T(8,128)}} all-gather-done(%s)\n"
        f'  ROOT %r = {F32} custom-call(%d, %w), custom_call_target="x"'
    )
    found = buffer_changes(module)
    assert [(a.tensor, a.bytes) for a in found["s"].allocs] == [("s", 2 * ONE)]
    assert found["d"] == BufferChange(frees=("a",))
    assert "s" in found["r"].frees


@pytest.mark.parametrize(("offloaded", "apart"), [("SCATTER", False), ("GATHER", True)])
def test_a_sparsecore_scatters_into_its_first_operand(offloaded, apart):
    """And gathers into a buffer of its own."""
    flat, rows = "f32[65536]{0:T(1024)}", "s32[256]{0:T(256)}"
    given = f"x: {flat}, i: {rows}, k: token[]"
    work = (
        f"%work ({given}) -> {flat} {{\n  %x = {flat} parameter(0)\n  %i = {rows} parameter(1)\n"
        "  %k = token[] parameter(2)\n"
        f'  ROOT %y = {flat} custom-call(%x, %i), custom_call_target="x"\n}}, '
        'execution_thread="sparsecore"\n\n'
    )
    note = f'backend_config={{"sparse_core_config":{{"offload":"OFFLOAD_{offloaded}"}}}}'
    module = main_of(
        f"%a = {flat} bitcast(%p)\n  %b = {flat} negate(%a)\n  %i = {rows} iota(), "
        f"iota_dimension=0\n  %k = token[] after-all()\n"
        f"  %s = (({flat}, {rows}, token[]), {flat}) async-start(%b, %i, %k), "
        f'async_execution_thread="sparsecore", calls=%work, {note}\n'
        f"  %d = {flat} async-done(%s)\n  %e = {F32} bitcast(%d)\n  ROOT %c = {F32} negate(%e)",
        before=work,
    )
    found = buffer_changes(module)
    assert ("s" in found) is apart
    assert found["c"].frees == (("s",) if apart else ("b",))


def test_a_result_that_the_compiler_put_over_an_operand_takes_nothing():
    note = '{"aliasing_operands":{"lists":[{"indices":["0","2"]}]}}'
    module = main_of(
        f"%a = {F32} negate(%p)\n  %b = {F32} add(%a, %p), backend_config={note}\n"
        f"  ROOT %c = {F32} negate(%b)"
    )
    found = buffer_changes(module)
    assert "b" not in found
    assert found["c"].frees == ("a",)


@pytest.mark.parametrize("space", ["", " "])
def test_each_declared_pair_of_result_and_operand_shares_its_memory(space):
    pairs = f"{{0}}: (0,{space}{{}}), {{1}}: (1,{space}{{}})"
    module = main_of(
        f"%a = {F32} negate(%p)\n  %b = {F32} negate(%a)\n"
        f'  %k = ({F32}, {F32}) custom-call(%a, %b), custom_call_target="x", '
        f"output_to_operand_aliasing={{{pairs}}}\n"
        f"  %s = {F32} get-tuple-element(%k), index=0\n"
        f"  %t = {F32} get-tuple-element(%k), index=1\n"
        f"  ROOT %r = {F32} add(%s, %t)"
    )
    found = buffer_changes(module)
    assert "k" not in found
    assert peak_bytes(module, found) == 3 * ONE


def test_outputs_in_the_memory_of_a_parameter_take_nothing():
    head = ", is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }"
    assert not buffer_changes(main_of(f"ROOT %r = {F32} negate(%p)", head=head))


LOOP = f"""
%body (c: ({S32}, {F32}, {STACK})) -> ({S32}, {F32}, {STACK}) {{
  %c = ({S32}, {F32}, {STACK}) parameter(0)
  %i = {S32} get-tuple-element(%c), index=0
  %x = {F32} get-tuple-element(%c), index=1
  %k = {STACK} get-tuple-element(%c), index=2
  %w = {F32} negate(%x)
  %y = {F32} add(%w, %x)
  %row = f32[1,256,256]{{2,1,0:T(8,128)}} bitcast(%y)
  %zero = {S32} constant(0)
  %u = {STACK} dynamic-update-slice(%k, %row, %i, %zero, %zero)
  %one = {S32} constant(1)
  %j = {S32} add(%i, %one)
  ROOT %n = ({S32}, {F32}, {STACK}) tuple(%j, %y, %u)
}}
%cond (d: ({S32}, {F32}, {STACK})) -> pred[] {{
  %d = ({S32}, {F32}, {STACK}) parameter(0)
  %e = {S32} get-tuple-element(%d), index=0
  %eight = {S32} constant(8)
  ROOT %l = pred[]{{:T(512)}} compare(%e, %eight), direction=LT
}}
"""


def test_the_carry_of_a_loop_belongs_to_the_computation_around_it():
    module = main_of(
        f"%z = {S32} constant(0)\n  %start = {S32} copy(%z)\n  %f = f32[]{{:T(128)}} constant(0)\n"
        f"  %stack = {STACK} broadcast(%f), dimensions={{}}\n  %x0 = {F32} copy(%p)\n"
        f"  %t = ({S32}, {F32}, {STACK}) tuple(%start, %x0, %stack)\n"
        f"  %loop = ({S32}, {F32}, {STACK}) while(%t), condition=%cond, body=%body\n"
        f"  %last = {F32} get-tuple-element(%loop), index=1\n  ROOT %r = {F32} negate(%last)",
        LOOP,
    )
    found = buffer_changes(module)
    assert [a.tensor for a in found["stack"].allocs] == ["stack"]
    assert "stack" in found["loop"].frees
    assert "x0" in found["r"].frees
    assert "u" not in found
    assert [a.tensor for a in found["w"].allocs] == ["w"]
    assert found["y"] == BufferChange(frees=("w",))
    assert peak_bytes(module) == pytest.approx(8 * ONE + 2 * ONE, rel=0.001)


def test_the_branches_of_a_conditional_write_its_result():
    branch = "%{0} (a{0}: f32[256,256]) -> f32[256,256] {{\n  %a{0} = {1} parameter(0)\n"
    yes = branch.format("yes", F32) + f"  %t = {F32} negate(%ayes)\n  ROOT %ry = {F32} negate(%t)"
    both = yes + "\n}\n" + branch.format("no", F32) + f"  ROOT %rn = {F32} negate(%ano)\n}}\n"
    module = main_of(
        f"%q = pred[]{{:T(512)}} constant(true)\n  %if = {F32} conditional(%q, %p, %p), "
        f"true_computation=%yes, false_computation=%no\n  ROOT %r = {F32} negate(%if)",
        both,
    )
    found = buffer_changes(module)
    assert [a.tensor for a in found["if"].allocs] == ["if"]
    assert "ry" not in found or not found["ry"].allocs
    assert found["ry"].frees == ("t",)
    assert peak_bytes(module, found) == 2 * ONE


def test_the_peak_is_the_compiler_s_own_of_a_real_program():
    """The memory report of its compilation: 1321 MiB in all, 192 of them arguments."""
    module = read_module(REAL.read_bytes())
    held = sum(alloc.bytes for alloc in argument_allocs(module))
    assert held / 2**20 == pytest.approx(192, abs=1)
    assert peak_bytes(module) / 2**20 == pytest.approx(1129, rel=0.002)


REPORTED = [path for path in sorted(DATA.glob("*.hlo.gz")) if read_hlo_file(path)[0] is not None]
"""Programs whose file brings the compiler's own report."""


@pytest.mark.parametrize("path", sample(REPORTED, 3), ids=lambda path: path.name)
def test_arguments_and_peak_are_what_the_compiler_needs_but_for_gaps_in_its_heap(path):
    """Its heap has gaps, and some 5 MiB that no instruction takes: these programs are small."""
    header, data = read_hlo_file(path)
    assert header is not None
    module = read_module(data)
    found = sum(alloc.bytes for alloc in argument_allocs(module)) + peak_bytes(module)
    assert 0.90 < found / header["memory"]["total"] < 1.001


def test_a_fusion_that_updates_a_stack_writes_it_in_place_without_the_compiler_s_note():
    module = read_module(REAL.read_bytes())
    plain = module_of(
        gzip.decompress(REAL.read_bytes()).decode().replace('"aliasing_operands"', '"unknown"')
    )
    assert peak_bytes(plain) == pytest.approx(peak_bytes(module), rel=0.05)


def test_what_is_freed_was_taken_before_in_the_same_computation():
    module = read_module(REAL.read_bytes())
    found = buffer_changes(module)
    seen: set[str] = set()
    for computation in module.computations.values():
        held: set[str] = set()
        for instruction in computation.instructions:
            change = found.get(instruction.name, BufferChange())
            taken = {alloc.tensor for alloc in change.allocs}
            assert not taken & held
            held |= taken
            assert set(change.frees) <= held
            held -= set(change.frees)
            seen.add(instruction.name)
        outputs = {a.tensor for c in found.values() for a in c.allocs if a.category == OUTPUTS}
        assert held <= outputs
    assert set(found) <= seen
    assert not [name for name in found if re.search("constant", name)]
