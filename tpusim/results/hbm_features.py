"""What a plan has in common with those whose HBM was compared with the compiler's."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tpusim.accuracy import HbmFeatures
from tpusim.models import ARCHITECTURE_NAMES, Transformer
from tpusim.plan import Plan
from tpusim.plan.numerics import NARROW_DTYPES

if TYPE_CHECKING:
    from tpusim.results.plan_result import PlanResult

_TRAITS: Mapping[str, Callable[[Plan], bool]] = {
    "a pipeline": lambda plan: bool(plan.active_schedule),
    "saved activations": lambda plan: plan.remat.policy != "full" or bool(plan.remat.save),
    "offloading": lambda plan: bool(plan.remat.offload) or plan.optimizer.offload,
    "layers without a scan": lambda plan: not plan.remat.scan_layers,
    "the loss in tiles": lambda plan: plan.vocab_tiles > 1 or plan.vocab_blocks > 1,
    "labels by index": lambda plan: plan.loss_labels == "index",
    "labels taken along the vocabulary": lambda plan: plan.loss_labels == "take",
    "context parallelism": lambda plan: "context" in plan.active_axes,
    "several slices": lambda plan: any(axis.startswith("dcn_") for axis in plan.active_axes),
    "narrow matmuls": lambda plan: plan.dtypes.matmul in NARROW_DTYPES,
    "the style of MaxText": lambda plan: plan.compiler.style == "maxtext",
    "Muon": lambda plan: plan.optimizer.name == "muon",
    "frozen weights": lambda plan: bool(plan.trainable or plan.adapters.rank),
}
"""What of a plan decides which buffers its program has, in words."""


def hbm_features(result: "PlanResult") -> HbmFeatures:
    """Return the features of a plan, by which its error in HBM is compared with others."""
    model, plan, kind = result.model, result.plan, type(result.model)
    traits = {words for words, has in _TRAITS.items() if has(plan)}
    if kind is not Transformer:
        traits.add(f"the architecture {ARCHITECTURE_NAMES.get(kind, kind.__name__)}")
    if model.has_experts:
        traits.add("experts")
    if getattr(model, "tied_embeddings", False):
        traits.add("tied embeddings")
    if not result.verdicts.trained:
        traits.add("no backward pass")
    return HbmFeatures(
        chip=result.pod.chip.generation,
        devices=result.pod.devices,
        traits=frozenset(traits),
        fill=result.hbm_peak_bytes / result.hbm_bytes,
    )
