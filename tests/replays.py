"""A small program as a compiler might have made it, for tests of what becomes of such."""

from dataclasses import replace

from steps import replay_program

from tpusim.base import Phase
from tpusim.hardware import Placement, Slice, placement_from
from tpusim.program import (
    Alloc,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Flops,
    Loop,
    MatmulWork,
    Mode,
    Op,
    Program,
    Transfer,
    TransferKind,
    VectorWork,
    WaitOp,
)
from tpusim.results import ProgramOrigin, ReplayResult

PHASES = (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.OPTIMIZER)
MIB = 2**20
POD = Slice("v5e", "4x4")
MESH = {"fsdp": 4, "tensor": 4}
ORIGIN = ProgramOrigin(
    name="train_step", versions=(("jax", "0.10.2"), ("libtpu", "0.0.42.1")), seconds=12.5
)
UNKNOWN = "custom-call.9"


def product(name: str, phase: Phase, source: str, **more: object) -> Compute:
    """A product of 2048 x 4096 x 4096 on each of 16 devices."""
    flops = 2 * 2048 * 4096 * 4096 * 16
    kind = "recompute" if phase is Phase.RECOMPUTE else "model"
    return Compute(
        name=name, phase=phase, scope=f"mlp/{source.partition(':')[2]}/dot_general", source=source,
        work=MatmulWork(1, 2048, 4096, 4096, "bf16", read_bytes=48 * MIB, write_bytes=16 * MIB),
        flops=Flops(**{kind: flops}), **more,
    )  # fmt: skip


def gather(name: str, phase: Phase, source: str, mode: Mode = Mode.SYNC) -> Collective:
    return Collective(
        name=name, phase=phase, kind=CollectiveKind.ALL_GATHER, axes=("fsdp",), bytes=32 * MIB,
        dtype="bf16", mode=mode, scope="mlp/all_gather", source=source,
    )  # fmt: skip


def layer(phase: Phase, number: int) -> tuple[Op, ...]:
    """A gather in which the core waits, and one beside a product; a prefetch beside another."""
    at = f"%d.{number}"
    return (
        gather(f"all-gather.{number}", phase, "model.py:12"),
        gather(f"all-gather-start.{number}", phase, "model.py:13", Mode.ASYNC),
        product(f"fusion.{number}", phase, "model.py:12", allocs=(Alloc(at, 16 * MIB, "heap"),)),
        Transfer(name=f"copy-start.{number}", phase=phase, kind=TransferKind.DMA, bytes=8 * MIB,
                 source="model.py:13"),
        WaitOp(name=f"all-gather-done.{number}", phase=phase,
             deps=(Dep(f"all-gather-start.{number}"),)),
        WaitOp(name=f"copy-done.{number}", phase=phase, deps=(Dep(f"copy-start.{number}"),)),
        product(f"convolution.{number}", phase, "model.py:13", frees=(at,)),
    )  # fmt: skip


BODY = (
    Loop(name="while.1", trips=6, body=layer(Phase.FORWARD, 1)),
    Compute(name=UNKNOWN, phase=Phase.FORWARD, scope="strange",
            work=VectorWork(read_bytes=MIB, write_bytes=MIB, flops=0)),
    Loop(name="while.2", trips=6, body=(*layer(Phase.RECOMPUTE, 2), *layer(Phase.BACKWARD, 3))),
    Compute(name="fusion.7", phase=Phase.OPTIMIZER, scope="adam/add", source="optimizer.py:7",
            work=VectorWork(read_bytes=64 * MIB, write_bytes=64 * MIB, flops=16 * MIB)),
)  # fmt: skip
"""Forward; recomputation and backward; an update."""

PROGRAM = Program(
    name="train_step", axes=tuple(MESH.items()), body=BODY,
    resident=(Alloc("%arguments", 512 * MIB, "arguments"),),
)  # fmt: skip


def placed(pod: Slice = POD) -> Placement:
    return placement_from(pod, MESH, {"fsdp": "x", "tensor": "y"})


def wide_replay(count: int) -> ReplayResult:
    """A replay of `count` operations that are all distinct; each fifth is a gather."""
    body = (
        replace(op, scope=f"layer_{number}/{op.scope}")
        for number in range(count)
        for phase in [PHASES[number * len(PHASES) // count]]
        for source in [f"model_{number % 97}.py:{number}"]
        for op in [
            product(f"fusion.{number}", phase, source)
            if number % 5
            else gather(f"all-gather.{number}", phase, source)
        ]
    )
    program = replace(PROGRAM, body=tuple(body), name="wide")
    return replay_program(program, POD, placed(), origin=ORIGIN, unknown={})


def small_replay(**given: object) -> ReplayResult:
    known = {"origin": ORIGIN, "unknown": {UNKNOWN: "no such kernel"}}
    return replay_program(PROGRAM, POD, placed(), **(known | given))


def called_replay() -> ReplayResult:
    """A line that calls a package: five products of its, one of the line itself; an update."""
    runs = ("mlp.py:9 in MLP.__call__", "mlp.py:9 in MLP.__call__", "mlp.py:9 in MLP.__call__",
            "attention.py:30 in attend", "attention.py:31", "")  # fmt: skip
    body = tuple(
        product(f"fusion.{at}", Phase.FORWARD, "train.py:66", library=run and f"net/{run}")
        for at, run in enumerate(runs)
    )
    update = product("fusion.9", Phase.OPTIMIZER, "train.py:80")
    program = Program(name="train_step", axes=tuple(MESH.items()), body=(*body, update))
    return replay_program(program, POD, placed(), origin=ORIGIN, unknown={})
