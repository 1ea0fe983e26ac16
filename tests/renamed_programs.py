"""Compiled programs under other names: mesh axes, layers, weights, functions, files, modules.

Names are drawn from those that mean something elsewhere: dimensions of the torus, parts of plans,
scopes of JAX, kernels of its libraries, kinds of waits, and what joins names.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from hlo import DATA
from scripts import EXPERIMENTS

import tpusim as ts
from tpusim.compiler import Compiled, load
from tpusim.program import walk_ops

AXES = (
    *("x", "y", "z", "die", "core", "x,y", "y,z", "x[:2]", "y[::2]", "slices", "x[:2],y"),
    *("data", "fsdp", "tensor", "stage", "expert", "replica", "context", "model", "a+b", "a b"),
    *("dcn_x", "dcn_data", "dcn_dcn_y", "dcn_", "stage permute", "fsdp permute", "x of 4", "y (2)"),
    *("compute", "dispatch", "input", "exposed", "skew", "hbm", "core 0", "ici", "axis", "é", "%"),
)
WORDS = (
    *(
        "x",
        "data",
        "rematted_computation_x",
        "checkpointed",
        "transpose",
        "jvp",
        "adam",
        "optimizer",
    ),
    *("flash_block", "splash_pool", "splash_mha_fwd", "flash_attention", "paged_attention", "gmm"),
    *("tgmm_like", "ragged_dot", "group_metadata", "pallas_calls", "flash_mha_bwd", "dq", "dkv"),
    *("embed", "all-gather", "all_reduce", "fusion", "custom-call", "parameter", "infeed", "copy"),
    *("manual_computation_body", "tpu_custom_call", "layer_0", "_bwd", "recompute", "backward"),
)
FILES = (
    *("compiling.py", "torch_module.py", "step.py", "lift.py", "x.py", "main.py", "jax.py"),
    *("tpusim.py", "linear.py", "site-packages.py", "a b.py", "é.py"),
)
OWN = re.compile(
    r"^$|^(?:while|body|cond|checkpoint|rematted_computation|closed_call|call_exported|shard_map|"
    r"pallas_call|<unnamed function>|branch_\d+_fun)$"
)
"""Scopes that JAX writes, which no user chooses."""
OP_NAME = re.compile(r'(?<=op_name=")(?:[^"\\]|\\.)*(?=")')
PARAMETER = re.compile(r' parameter\(\d+\).*op_name="((?:[^"\\]|\\.)*)"')
TABLE = re.compile(r'^(FileNames|FunctionNames)\n((?:\d+ ".*"\n)+)', re.MULTILINE)
WRAPPER = re.compile(r"(?:\w*\()+")

STORED = (
    *sorted(DATA.glob("*.hlo.gz")),
    *sorted((DATA / "kernels").glob("*.hlo.gz")),
    *sorted((EXPERIMENTS / "replayed_runs/programs").glob("*.hlo.gz")),
)
"""Programs that bring their slice and their mesh."""


@cache
def stored(number: int) -> Compiled:
    return load(STORED[number])


def names(pool: Sequence[str], draw: random.Random) -> Callable[[str], str]:
    """A name for each name, never the same for two."""
    given: dict[str, str] = {}

    def of(name: str) -> str:
        if name not in given:
            new = draw.choice(pool)
            given[name] = new if new not in given.values() else f"{new}_{len(given)}"
        return given[name]

    return of


def renamed(program: Compiled, draw: random.Random) -> Compiled:
    """The program under other names."""
    entry = program.hlo[program.hlo.index("\nENTRY ") :]
    weights = {name for name in PARAMETER.findall(entry) if not WRAPPER.match(name)}
    axis, scope, file = names(AXES, draw), names(WORDS, draw), names(FILES, draw)

    def scopes(found: re.Match[str]) -> str:
        first, *parts = found[0].split("/")
        if found[0] in weights:
            return f"{scope(found[0])}['transpose(jvp(w))']"
        if not WRAPPER.match(first):
            return found[0]
        kept = 2 if parts[-1:] == ["pallas_call"] else 1
        inner, end = parts[: max(0, len(parts) - kept)], parts[max(0, len(parts) - kept) :]
        return "/".join([*(_rescoped(part, scope) for part in (first, *inner)), *end])

    def table(found: re.Match[str]) -> str:
        rename = file if found[1] == "FileNames" else scope
        rows = re.sub(r'"(.*)"', lambda row: f'"{rename(row[1])}"', found[2])
        return f"{found[1]}\n{rows}"

    text = TABLE.sub(table, OP_NAME.sub(scopes, program.hlo))
    text = re.sub(r"^HloModule [\w.\-]+", "HloModule jit_x", text, count=1)
    mesh = program.mesh and tuple((axis(name), size) for name, size in program.mesh)
    return replace(program, name="y,z", data=text.encode(), mesh=mesh)


def _rescoped(part: str, scope: Callable[[str], str]) -> str:
    found = WRAPPER.match(part)
    head = found[0] if found else ""
    core, tail = part[len(head) :].rstrip(")"), ")" * head.count("(")
    if head + core + tail != part or OWN.match(core):
        return part
    return head + scope(core) + tail


def numbers(program: Compiled) -> Any:
    """All that a replay says of a program but its names."""
    result = ts.simulate(program)
    timeline, lines = result.timeline, ts.explain_lines(result).rows
    ops = [
        (op.name, type(op).__name__, str(op.phase), times, getattr(op, "bytes", 0))
        for op, times in walk_ops(result.program.body)
    ]
    return {
        "step": timeline.total_ps,
        "memory": timeline.memory,
        "breakdown": sorted(result.breakdown_s.values()),
        "flops": (result.flops, result.mfu, result.hfu),
        "hbm": (result.hbm_peak_bytes, result.memory_bytes),
        "links": sorted(result.link_use.values()),
        "unknown": [(each.name, each.picoseconds) for each in result.unknown],
        "axes": sorted(size for _, size in result.program.axes),
        "operations": ops,
        "works": [getattr(op, "work", None) for op, _ in walk_ops(result.program.body)],
        "lines": sorted((row.seconds, sorted(row.does_s.values())) for row in lines),
        "notes": len(result.remarks),
    }
