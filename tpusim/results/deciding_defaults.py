"""The keys of a plan that decide its step and are left at their defaults, in words."""

from collections.abc import Iterator

from tpusim.graph import Attention
from tpusim.models import Architecture
from tpusim.plan import Plan
from tpusim.results.unused_keys import KeyEffects

_STORED = {
    "weights": ("param_dtype", "param"),
    "moments": ("moment_dtype", "moment"),
    "gradients": ("grad_dtype", "grad"),
    "reductions": ("reduce_dtype", "reduce"),
}
"""The key and the field of each dtype that a plan's own line shows only if it is set."""


def deciding_defaults(model: Architecture, plan: Plan, *, fed: bool) -> Iterator[tuple[str, str]]:
    """Yield the keys that decide and have their defaults, each with a phrase that says the value.

    Of keys that share a phrase, the first is yielded.

    They move the step of measured runs by 2 to 40 %, and the line of the plan does not show them.
    Of 60 runs: reductions in f32 move 44, one backward kernel 20, larger blocks of attention 19, a
    synchronous loop 15, the other style 10, bf16 weights 5.

    fed: the hosts' input pipeline is simulated.
    """
    step = KeyEffects(model, plan)
    left = {key for key, value in plan.flat().items() if value == step.usual[key]}
    if {"style", "lowering"} <= left:
        yield "style", "a program of plain JAX"
    yield from _dtypes(plan, left)
    kernel = plan.attention_kernel
    if any(isinstance(op, Attention) for op in step.ops):
        if {"attention_block", "attention_block_backward"} <= left:
            yield "attention_block", f"attention in blocks of {' x '.join(map(str, kernel.block))}"
        if "attention_backward" in left:
            yield "attention_backward", "two kernels for its gradients"
    if "loop" in left:
        ready = " whose input is ready" if "input_s" in left and not fed else ""
        yield "loop", f"an asynchronous loop{ready}"


def _dtypes(plan: Plan, left: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each dtype with what has it: weights and moments in f32."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, (key, field) in _STORED.items():
        if key in left and not (name == "moments" and plan.optimizer.name == "sgd"):
            found.setdefault(plan.as_compiled.dtypes.of(field), []).append((key, name))
    for dtype, named in found.items():
        yield named[0][0], f"{dtype} {' and '.join(name for _, name in named)}"
