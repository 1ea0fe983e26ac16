"""What instructions move: lines of real programs (libtpu 0.0.42.1), shortened."""

import re
from dataclasses import replace

import pytest
from compiler_parts import HloModule, collective_algorithm
from hlo_lines import module

from tpusim.base import FileError
from tpusim.compiler.to_program.collectives import module_groups, movement_of
from tpusim.compiler.to_program.data_movement import AsyncRole, DataMovement, MovementKind
from tpusim.program import CollectiveKind as Kind

MIB = 2**20
GLOBAL = (
    "replica_groups={{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}, use_global_device_ids=true"
)
ROWS = "replica_groups=[4,4]<=[4,4]T(1,0), dimensions={2}, use_global_device_ids=true"


def uses(text: str) -> dict[str, DataMovement]:
    """What each instruction of the entry moves, by name; those that move nothing are left out."""
    made = of_16(text)
    found = {each.name: movement_of(made, made.main, each) for each in made.main.instructions}
    return {name: use for name, use in found.items() if use is not None}


def of_16(text: str) -> HloModule:
    """The module of 16 devices; lines that begin with four blanks go on from the one before."""
    return replace(module(re.sub(r"\n {4,}", " ", text)), devices=16)


def one(text: str) -> DataMovement:
    (found,) = uses(text).values()
    return found


def ids(use: DataMovement) -> list[list[int]]:
    assert use.groups is not None
    return use.groups.ids.tolist()


SYNC = [
    (
        "all-gather", Kind.ALL_GATHER, 8 * MIB, "bf16",
        "bf16[1,4096,8,128]{3,1,2,0:T(8,128)(2,1)S(1)} all-gather(a), channel_id=52, "
        "replica_groups=mesh['axis_0'=4,'axis_1'=1,'axis_2'=4] {'axis_0'}, dimensions={1}, "
        "use_global_device_ids=true",
    ),
    (
        "all-reduce", Kind.ALL_REDUCE, 112 * MIB, "bf16",
        f"bf16[4096,14336]{{1,0}} all-reduce(a), channel_id=36, {GLOBAL}, to_apply=%add",
    ),
    (
        "several arrays at once", Kind.ALL_REDUCE, 2 * MIB + 4, "bf16",
        f"(bf16[1024,1024]{{1,0}}, f32[]) all-reduce(a, b), channel_id=36, {GLOBAL}",
    ),
    (
        "reduce-scatter: four shards", Kind.REDUCE_SCATTER, 8 * MIB, "bf16",
        f"bf16[1024,1024]{{1,0}} reduce-scatter(a), channel_id=36, {GLOBAL}, dimensions={{0}}",
    ),
    (
        "all-to-all", Kind.ALL_TO_ALL, 16 * MIB, "bf16",
        f"bf16[1,8192,8,128]{{3,1,0,2}} all-to-all(a), channel_id=1, {GLOBAL}, dimensions={{2}}",
    ),
    (
        "all-to-all of a tuple", Kind.ALL_TO_ALL, 4 * MIB, "f32",
        "(f32[512,512]{1,0}, f32[512,512]{1,0}, f32[512,512]{1,0}, f32[512,512]{1,0}) "
        f"all-to-all(a, b, c, d), channel_id=1, {GLOBAL}",
    ),
    (
        "collective-broadcast", Kind.BROADCAST, 2 * MIB, "bf16",
        f"bf16[1024,1024]{{1,0}} collective-broadcast(a), channel_id=1, {GLOBAL}",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "nbytes", "dtype", "text"), [case[1:] for case in SYNC],
                         ids=[case[0] for case in SYNC])  # fmt: skip
def test_collectives_that_the_core_waits_for(
    kind: Kind, nbytes: float, dtype: str, text: str
) -> None:
    found = one(f"main\n* x = {text}")
    assert (found.kind, found.role, found.collective) == (
        MovementKind.COLLECTIVE,
        AsyncRole.SYNC,
        kind,
    )
    assert (found.bytes, found.dtype, found.note) == (nbytes, dtype, "")
    assert ids(found) == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


PADDED = [
    ("bf16[5120,1696]{1,0:T(8,128)(2,1)} all-gather(a)", 5120 * 1792 * 2, 1696 / 1792),
    ("bf16[1,1024]{1,0:T(2,128)(2,1)} all-reduce(a)", 2 * 1024 * 2, 1 / 2),
    ("bf16[20,1024]{1,0:T(8,128)(2,1)} reduce-scatter(a)", 4 * 24 * 1024 * 2, 20 / 24),
    ("(f32[20,100]{1,0:T(8,128)}, f32[20,100]{1,0:T(8,128)}, u32[]{:S(2)}) "
     "collective-permute-start(a)", 24 * 128 * 4, 20 / 24 * 100 / 128),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "nbytes", "data"), PADDED, ids=[case[0].split("(a")[0] for case in PADDED]
)
def test_what_a_layout_pads_is_moved_too(text: str, nbytes: float, data: float) -> None:
    """The first is of a real program, which notes shards of 1146880 bytes for groups of 16."""
    groups = "source_target_pairs={{0,1}}" if "permute" in text else GLOBAL
    found = one(f"main\n* x = {text}, channel_id=1, dimensions={{0}}, {groups}")
    assert found.bytes == nbytes
    assert found.padded == pytest.approx(nbytes * (1 - data))


def test_the_host_has_no_padding() -> None:
    found = one("main\n* x = (f32[20,100]{1,0:T(8,128)}, token[]) infeed(a)")
    assert found.bytes == 20 * 100 * 4


@pytest.mark.parametrize(("sent", "room"), [(8192, 32768), (32768, 8192)])
def test_a_ragged_exchange_moves_what_there_is(sent: int, room: int) -> None:
    """The one buffer has room for all rows of all devices; on average they fill the other."""
    found = uses(
        f"main\n a = bf16[{sent},2,2048]{{2,1,0}} parameter(0)\n"
        f"* x = bf16[{room},2,2048]{{2,1,0}} ragged-all-to-all(a, b, c, d, e, f), channel_id=1, "
        f"{GLOBAL}"
    )["x"]
    assert found.bytes == 64 * MIB


def test_a_permute_runs_to_its_done() -> None:
    found = uses(
        "main\n"
        "s = (bf16[1,2048,8,128]{3,1,2,0:T(8,128)(2,1)S(1)}, bf16[1,2048,8,128]{3,1,2,0}, "
        "u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(a), channel_id=1, "
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}\n"
        "* d = bf16[1,2048,8,128]{3,1,2,0} collective-permute-done(s)"
    )
    start, done = found["s"], found["d"]
    assert (start.collective, start.role, start.bytes) == (Kind.PERMUTE, AsyncRole.START, 4 * MIB)
    assert ids(start) == [[0, 1], [1, 2], [2, 3], [3, 0]]
    assert (done.role, done.operand, done.bytes) == (AsyncRole.DONE, "s", start.bytes)


@pytest.mark.parametrize(
    ("opcode", "shape", "kind"),
    [
        ("all-gather-start", "(bf16[256,1024], bf16[1024,1024])", Kind.ALL_GATHER),
        (
            "all-gather-start",
            "((bf16[128,1024], bf16[128,1024]), (bf16[512,1024], bf16[512,1024]))",
            Kind.ALL_GATHER,
        ),
        ("all-reduce-start", "bf16[1024,1024]", Kind.ALL_REDUCE),
        ("all-reduce-start", "(bf16[512,1024], bf16[512,1024])", Kind.ALL_REDUCE),
    ],
)
def test_starts_have_their_operands_beside_their_results(
    opcode: str, shape: str, kind: Kind
) -> None:
    found = one(f"main\n* s = {shape} {opcode}(a), channel_id=1, {GLOBAL}")
    assert (found.collective, found.role, found.bytes) == (kind, AsyncRole.START, 2 * MIB)


SCATTER = """
all-reduce-scatter.1
input = bf16[4096,14336]{1,0:T(8,128)(2,1)} parameter(0)
all-reduce.40 = bf16[4096,14336]{1,0:T(8,128)(2,1)} all-reduce(input), channel_id=38, GROUPS
* cut = bf16[1024,14336]{1,0} dynamic-slice(all-reduce.40, i, j), dynamic_slice_sizes={1024,14336}

main
a = bf16[4096,14336]{1,0} parameter(0)
* x = bf16[1024,14336]{1,0} fusion(a), kind=kCustom, calls=%all-reduce-scatter.1,
    backend_config=CONFIG
"""
CONFIG = (
    '{"collective_algorithm_config":{"emitter":"SingleInputAllReduceScatterFusion",'
    '"strategy":"StrategyRing","debug":"StrategyRing{colors:1 phases:1 cores:{4}}"}}'
)


def test_a_fused_reduce_scatter_counts_its_bytes_once() -> None:
    text = SCATTER.replace("GROUPS", GLOBAL).replace("CONFIG", CONFIG)
    found = one(text)
    assert (found.collective, found.role, found.bytes) == (
        Kind.REDUCE_SCATTER,
        AsyncRole.SYNC,
        112 * MIB,
    )
    assert found.algorithm == "ring"
    assert len(list(module_groups(of_16(text)))) == 1


WOVEN = f"""
begin
p = bf16[1,2,1024,14336]{{3,2,1,0}} parameter(0)
g = bf16[1,2,4096,14336]{{3,2,1,0}} all-gather(p), channel_id=23, {ROWS},
    frontend_attributes={{chain_id="0"}}
* c = (bf16[1,2,1024,14336]{{3,2,1,0}}, bf16[1,2,4096,14336]{{3,2,1,0}}) custom-call(g),
    custom_call_target="AsyncCollectiveStart"

beside
p = bf16[1,2,1024,14336]{{3,2,1,0}} parameter(0)
g = bf16[1,2,4096,14336]{{3,2,1,0}} all-gather(p), channel_id=23, {ROWS},
    frontend_attributes={{chain_id="0"}}
* m = bf16[2,4,1280,14336]{{3,2,1,0}} convolution(x, y), dim_labels=bf_io->bf

end
p = bf16[1,2,1024,14336]{{3,2,1,0}} parameter(0)
g = bf16[1,2,4096,14336]{{3,2,1,0}} all-gather(p), channel_id=23, {ROWS},
    frontend_attributes={{chain_id="0"}}
* c = bf16[1,2,4096,14336]{{3,2,1,0}} custom-call(p, q, g), custom_call_target="AsyncCollectiveDone"

main
a = bf16[1,2,1024,14336]{{3,2,1,0}} parameter(0)
s = (bf16[1,2,1024,14336]{{3,2,1,0}}, bf16[1,2,4096,14336]{{3,2,1,0}}) fusion(a),
    kind=kCustom, calls=%begin
t = (bf16[2,4,1280,14336]{{3,2,1,0}}, bf16[1,2,4096,14336]{{3,2,1,0}}) fusion(s, b),
    kind=kOutput, calls=%beside
* d = bf16[1,2,4096,14336]{{3,2,1,0}} fusion(t), kind=kCustom, calls=%end
"""


def test_a_gather_that_is_woven_into_matmuls() -> None:
    found = uses(WOVEN)
    roles = {name: use.role for name, use in found.items()}
    assert roles == {"s": AsyncRole.START, "t": AsyncRole.STEP, "d": AsyncRole.DONE}
    assert {use.chain for use in found.values()} == {"chain 0"}
    assert {use.bytes for use in found.values()} == {224 * MIB}
    assert (found["t"].operand, found["d"].operand) == ("s", "t")


def placed(text: str, name: str = "x") -> tuple[float, float]:
    """The shares of the operands and of the results of a collective in HBM."""
    return uses(f"main\na = f32[256,1024]{{1,0:S(1)}} parameter(0)\n"
                f"b = f32[256,1024]{{1,0}} parameter(1)\n{text}")[name].hbm  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("f32[1024,1024]{1,0} all-gather(b)", (1, 1)),
        ("f32[1024,1024]{1,0:T(8,128)S(1)} all-gather(b)", (1, 0)),
        ("f32[1024,1024]{1,0:T(8,128)} all-gather(a)", (0, 1)),
        ("f32[1024,1024]{1,0:T(8,128)S(3)} all-gather(a)", (0, 0)),
        ("(f32[256,1024]{1,0}, f32[256,1024]{1,0:S(1)}) all-reduce(a, a, b, b, b)", (0.6, 0.5)),
        ("(f32[256,1024]{1,0:S(1)}, f32[1024,1024]{1,0}) all-gather-start(a)", (0, 1)),
        ("(f32[256,1024]{1,0}, f32[256,1024]{1,0:S(1)}, u32[]{:S(2)}) "
         "collective-permute-start(b)", (1, 0)),
        ("f32[256,1024]{1,0} all-reduce-start(a)", (0, 1)),
    ],
)  # fmt: skip
def test_where_a_collective_reads_and_writes(text: str, shares: tuple[float, float]) -> None:
    assert placed(f"* x = {text}, channel_id=1, {GLOBAL}") == shares


def test_a_fusion_says_where_its_collective_reads_and_writes() -> None:
    """Inside of it arrays have no place, but for those that come in."""
    assert uses(WOVEN)["s"].hbm == (1, 1)
    onto = "s = (bf16[1,2,1024,14336]{3,2,1,0}, bf16[1,2,4096,14336]{3,2,1,0})"
    assert onto in WOVEN
    chip = onto.replace("4096,14336]{3,2,1,0}", "4096,14336]{3,2,1,0:S(1)}")
    assert uses(WOVEN.replace(onto, chip))["s"].hbm == (1, 0)


def test_a_reduce_scatter_fusion_reads_what_comes_in_and_leaves_what_it_makes() -> None:
    text = f"""
add
l = f32[] parameter(0)
r = f32[] parameter(1)
* s = f32[] add(l, r)

scatter
p = f32[1024,1024]{{1,0:T(8,128)IN}} parameter(0)
v = f32[4,256,1024]{{2,1,0}} bitcast(p)
r = f32[4,256,1024]{{2,1,0}} all-reduce(v), channel_id=1, {GLOBAL}, to_apply=%add
i = s32[] constant(0)
* c = f32[1,256,1024]{{2,1,0}} dynamic-slice(r, i, i, i), dynamic_slice_sizes={{1,256,1024}}

main
a = f32[1024,1024]{{1,0:T(8,128)IN}} parameter(0)
* x = f32[1,256,1024]{{2,1,0:T(8,128)OUT}} fusion(a), kind=kCustom, calls=%scatter
"""
    for into, out, shares in (("", "", (1, 1)), ("S(1)", "", (0, 1)), ("S(1)", "S(1)", (0, 0))):
        found = uses(text.replace("IN", into).replace("OUT", out))["x"]
        assert (found.collective, found.hbm) == (Kind.REDUCE_SCATTER, shares)


SPARSECORE = f"""
inner
p = u32[2,4096,2]{{1,2,0}} parameter(0)
* g = u32[32,4096,2]{{1,2,0}} all-gather(p), channel_id=21, {ROWS.replace("{2}", "{0}")}

copied
p = bf16[2,4096,4096]{{2,1,0}} parameter(0)
* c = bf16[2,4096,4096]{{2,1,0:T(16,128)(2,1)}} copy(p)

format
p = bf16[2,4096,4096]{{2,1,0}} parameter(0)
s = ((bf16[2,4096,4096]{{2,1,0}}), bf16[2,4096,4096]{{2,1,0}},
    u32[]{{:S(8)}}) call-start(p), async_execution_thread="sparsecore", to_apply=%copied
* d = bf16[2,4096,4096]{{2,1,0}} call-done(s)

rows
p = f32[32768,1024]{{1,0}} parameter(0)
i = s32[1024,1]{{1,0}} parameter(1)
* r = f32[1024,1024]{{1,0}} gather(p, i), slice_sizes={{1,1024}}

main
a = u32[2,4096,2]{{1,2,0}} parameter(0)
b = bf16[2,4096,4096]{{2,1,0}} parameter(1)
t = f32[32768,1024]{{1,0}} parameter(2)
i = s32[1024,1]{{1,0}} parameter(3)
h = ((f32[32768,1024]{{1,0}}, s32[1024,1]{{1,0}}), f32[1024,1024]{{1,0}},
    u32[]{{:S(8)}}) call-start(t, i), async_execution_thread="sparsecore", to_apply=%rows
g = ((u32[2,4096,2]{{1,2,0}}, token[]), u32[32,4096,2]{{1,2,0}}) call-start(a, t),
    async_execution_thread="sparsecore", to_apply=%inner
f = ((bf16[2,4096,4096]{{2,1,0}}), bf16[2,4096,4096]{{2,1,0}},
    u32[]{{:S(8)}}) call-start(b), async_execution_thread="sparsecore", to_apply=%format
e = bf16[2,4096,4096]{{2,1,0}} call-done(f)
* d = u32[32,4096,2]{{1,2,0}} call-done(g)
"""


def test_collectives_and_copies_of_the_sparsecore() -> None:
    found = uses(SPARSECORE)
    gather, copy = found["g"], found["f"]
    assert (gather.kind, gather.collective, gather.role) == (
        MovementKind.COLLECTIVE, Kind.ALL_GATHER, AsyncRole.START,
    )  # fmt: skip
    assert (gather.bytes, gather.algorithm) == (1 * MIB, "nd")
    assert (copy.kind, copy.role, copy.bytes) == (
        MovementKind.SPARSECORE,
        AsyncRole.START,
        128 * MIB,
    )
    assert found["h"].bytes == 8 * MIB + 4 * 1024
    assert (found["d"].collective, found["d"].operand) == (Kind.ALL_GATHER, "g")
    assert (found["e"].kind, found["e"].operand) == (MovementKind.SPARSECORE, "f")


SEND = """
main
t = token[] after-all(), frontend_attributes={MegascaleRendezvousKeyName="collective-permute.7_0"}
a = bf16[1,1,1024,1024]{2,3,1,0} parameter(0)
s = (bf16[1,1,1024,1024]{2,3,1,0}, u32[], token[]) send(a, t), channel_id=2,
    is_host_transfer=true,
    frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",
    _xla_host_transfer_rendezvous="collective-permute.7_0",_xla_megascale_target=TARGET,
    _xla_megascale_transfer_type="TYPE"}
r = (bf16[1,1,1024,1024]{2,3,1,0}, u32[], token[]) recv(t), channel_id=1,
    is_host_transfer=true,
    frontend_attributes={_xla_host_transfer_rendezvous="collective-permute.7_0",
    _xla_megascale_target=TARGET}
d = token[] send-done(s), channel_id=2, is_host_transfer=true
* e = (bf16[1,1,1024,1024]{2,3,1,0}, token[]) recv-done(r), channel_id=1, is_host_transfer=true
"""


ASKED = """
main
t = token[] after-all()
a = f32[8]{0} parameter(0)
s = (f32[8]{0}, u32[], token[]) send(a, t), channel_id=1, is_host_transfer=true,
    frontend_attributes={_xla_host_transfer_handler_name="pjrt_rendezvous",
    _xla_host_transfer_rendezvous="2"}
d = token[] send-done(s), channel_id=1, is_host_transfer=true
r = (f32[4]{0}, u32[], token[]) recv(d), channel_id=2, is_host_transfer=true,
    frontend_attributes={_xla_host_transfer_handler_name="pjrt_rendezvous",
    _xla_host_transfer_rendezvous="3"}
* e = (f32[4]{0}, token[]) recv-done(r), channel_id=2, is_host_transfer=true
"""


def test_a_callback_sends_to_the_host_and_its_answer_comes_from_there() -> None:
    found = uses(ASKED)
    assert (found["s"].kind, found["s"].bytes) == (MovementKind.TO_HOST, 32)
    assert (found["r"].kind, found["r"].role, found["r"].bytes) == (
        MovementKind.FROM_HOST,
        AsyncRole.START,
        16,
    )
    assert (found["e"].role, found["e"].operand) == (AsyncRole.DONE, "r")
    assert "answer at once" in found["r"].note


@pytest.mark.parametrize(
    ("target", "said", "kind", "slices"),
    [
        ("{{100000->200000},{100001->200001}}", "ONE_TO_ONE", Kind.PERMUTE, ((0, 1),)),
        (
            "{{100000->200000},{200000->100000}}", "ONE_TO_ONE", Kind.PERMUTE, ((0, 1), (1, 0)),
        ),
        ('"{1,2}x{0:3}"', "ALL_REDUCE", Kind.ALL_REDUCE, ((0, 1),)),
        ('"{1,2}{3,4}x{0:3}"', "ALL_REDUCE", Kind.ALL_REDUCE, ((0, 1), (2, 3))),
    ],
)  # fmt: skip
def test_sends_between_slices(
    target: str, said: str, kind: Kind, slices: tuple[tuple[int, int], ...]
) -> None:
    found = uses(SEND.replace("TARGET", target).replace("TYPE", said))
    send = found["s"]
    assert (send.kind, send.collective, send.role) == (
        MovementKind.COLLECTIVE,
        kind,
        AsyncRole.START,
    )
    assert send.bytes == 2 * MIB
    assert send.slices is not None
    assert send.slices.ids.tolist() == [list(group) for group in slices]
    assert send.slices.pairs == (said == "ONE_TO_ONE")
    assert (found["r"].kind, found["r"].chain) == (MovementKind.NOTHING, send.chain)
    assert (found["d"].kind, found["d"].chain) == (MovementKind.NOTHING, "")
    assert (found["e"].role, found["e"].chain) == (AsyncRole.DONE, send.chain)
    assert found["t"].kind is MovementKind.NOTHING


@pytest.mark.parametrize(
    "target", ['"{1,}x{0:3}"', f'"{{1,{10**30}}}x{{0:3}}"', f"{{{{100000->{10**30}}}}}"]
)
def test_numbers_of_no_slices_are_one_sentence(target: str) -> None:
    with pytest.raises(FileError, match="are not slices of a transfer"):
        uses(SEND.replace("TARGET", target).replace("TYPE", "ALL_REDUCE"))


@pytest.mark.parametrize(
    ("line", "what", "nbytes"),
    [
        ("(f32[1024,1024]{1,0:S(1)}, f32[1024,1024]{1,0}, u32[]) copy-start(a)", "dma", 4),
        ("(f32[1024,1024]{1,0}, f32[1024,1024]{1,0}, u32[]) copy-start(a)", "dma", 8),
        ("(f32[1024,1024]{1,0:S(1)}, f32[1024,1024]{1,0:S(3)}, u32[]) copy-start(a)", "dma", 0),
        ("(f32[1024,1024]{1,0:S(5)}, f32[1024,1024]{1,0}, u32[]) copy-start(a)", "to-host", 4),
        ("(f32[1024,1024]{1,0}, f32[1024,1024]{1,0:S(5)}, u32[]) copy-start(a)", "from-host", 4),
        ("((f32[4096,1024]{1,0}), f32[1024,1024]{1,0:S(1)}, s32[]) slice-start(a)", "dma", 4),
        (
            "((f32[32,1024,1024]{2,1,0:S(5)}, f32[1,1024,1024]{2,1,0}, s32[]), "
            "f32[32,1024,1024]{2,1,0:S(5)}, u32[]) dynamic-update-slice-start(a, b, c)",
            "to-host", 4,
        ),
        (
            "((f32[32,1024,1024]{2,1,0}, f32[1,1024,1024]{2,1,0:S(1)}, s32[]), "
            "f32[32,1024,1024]{2,1,0}, u32[]) dynamic-update-slice-start(a, b, c)",
            "dma", 4,
        ),
        (
            "((f32[32,1024,1024]{2,1,0:S(5)}, s32[]), f32[1,1024,1024]{2,1,0}, u32[]) "
            "dynamic-slice-start(a, b)",
            "from-host", 4,
        ),
        ("(f32[1024,1024]{1,0}, token[]) infeed(t)", "from-host", 4),
    ],
)  # fmt: skip
def test_copies_between_memories(line: str, what: str, nbytes: float) -> None:
    found = one(f"main\n* x = {line}")
    assert (str(found.kind), found.bytes) == (what, nbytes * MIB)


def test_plumbing_moves_nothing_and_compute_is_not_asked() -> None:
    found = uses(
        "main\n a = f32[8]{0} parameter(0)\n b = f32[8]{0} negate(a)\n"
        ' c = f32[8]{0} custom-call(), custom_call_target="AllocateBuffer"\n'
        '* d = f32[8]{0} custom-call(a), custom_call_target="tpu_custom_call"'
    )
    assert {name: use.kind for name, use in found.items()} == {"c": MovementKind.NOTHING}


def test_a_done_of_what_is_not_in_sight_moves_nothing() -> None:
    found = one("main\n* d = f32[8]{0} copy-done(elsewhere)")
    assert (found.kind, found.role) == (MovementKind.NOTHING, AsyncRole.DONE)


@pytest.mark.parametrize(
    ("emitter", "strategy", "debug", "kind", "algorithm"),
    [
        ("1DAllGatherNonMajorDim", "", "", Kind.ALL_GATHER, "ring"),
        ("1DAllGatherOnMajorDimImbalanced", "", "", Kind.ALL_GATHER, "ring"),
        ("2DAllGather", "", "", Kind.ALL_GATHER, "nd"),
        ("AllGatherWithNetRouterEmitter", "", "", Kind.ALL_GATHER, "nd"),
        ("RotatedPincerEmitter", "StrategyND", "colors:2 phases:2", Kind.ALL_REDUCE, "nd"),
        ("RotatedPincerEmitter", "StrategyND", "colors:2 phases:1", Kind.ALL_REDUCE, "ring"),
        ("RotatedPincerEmitter", "StrategyRing", "phases:1", Kind.ALL_REDUCE, "ring"),
        ("RotatedPincerEmitter", "UniDirection1DRingStrategy", "phases:1", Kind.ALL_REDUCE, "ring"),
        ("RotatedPincerEmitter", "UniDirectionNDRingStrategy", "phases:3", Kind.ALL_REDUCE, "nd"),
        ("RotatedPincerShortEmitter", "StrategyND", "phases:3", Kind.ALL_REDUCE, "nd"),
        ("SinglePhaseRingSumEmitter", "", "", Kind.ALL_REDUCE, "ring"),
        ("AllReduceScatterFusion", "StrategyRing", "phases:1", Kind.REDUCE_SCATTER, "ring"),
        ("AllToAllEmitter", "", "", Kind.ALL_TO_ALL, ""),
        ("NetRouterEmitter", "", "", Kind.ALL_TO_ALL, ""),
        ("CollectivePermuteEmitter", "", "", Kind.PERMUTE, ""),
    ],
)
def test_the_algorithms_that_the_compiler_names(
    emitter: str, strategy: str, debug: str, kind: Kind, algorithm: str
) -> None:
    config = {"emitter": emitter, "debug": debug} | ({"strategy": strategy} if strategy else {})
    found = collective_algorithm(kind, {"collective_algorithm_config": config})
    assert found == (algorithm, "")


@pytest.mark.parametrize("kind", [Kind.ALL_GATHER, Kind.ALL_TO_ALL])
def test_an_unknown_emitter_is_noted(kind: Kind) -> None:
    config = {"collective_algorithm_config": {"emitter": "Teleport"}}
    assert collective_algorithm(kind, config) == ("", "emitter Teleport is not known")
