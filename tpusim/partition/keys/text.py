"""How a plan prints: one sentence, with what is not the default."""

from typing import TYPE_CHECKING

from tpusim.partition.keys import context, dtypes, experts, pipeline, saving
from tpusim.units import format_seconds

if TYPE_CHECKING:
    from tpusim.partition.plan import Plan


def text(plan: "Plan") -> str:
    """The sentence of a plan."""
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    parts = f" in {plan.microbatches} microbatches" if plan.microbatches > 1 else ""
    tiles = f", loss in {plan.vocab_tiles} tiles" if plan.vocab_tiles > 1 else ""
    best = "" if plan.collectives == "xla" else f", {plan.collectives} collectives"
    made = f", input made in {format_seconds(plan.input_s)}" if plan.input_s else ""
    return (
        f"mesh {mesh}, batch {plan.global_batch} x {plan.seq_len} tokens{parts}"
        f"{pipeline.text(plan)}, {saving.text(plan)}{tiles}{context.text(plan)}, "
        f"{dtypes.text(plan)}, {plan.optimizer}, "
        f"lowering {plan.lowering} ({plan.style}){best}{experts.text(plan)}{made}"
    )
