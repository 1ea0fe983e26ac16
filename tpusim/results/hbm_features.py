"""What a plan has in common with those whose HBM was compared with the compiler's."""

from collections.abc import Callable, Mapping

from tpusim.accuracy import HbmFeatures
from tpusim.hardware import Slice
from tpusim.models import ARCHITECTURE_NAMES, Architecture, Transformer
from tpusim.plan import Plan
from tpusim.plan.numerics import NARROW_DTYPES

SQUEEZED = 0.85
"""The part of HBM from which on a plan of layers without a scan may be so near to the limit that
the compiler computes some of what they hold again, before it refuses. It does not in a scan."""

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


def hbm_features(
    model: Architecture, plan: Plan, pod: Slice, *, fill: float, trained: bool = True
) -> HbmFeatures:
    """Return the features of a plan, by which its error in HBM is compared with others.

    fill: what it needs over what the compiler can use.
    trained: False for the forward pass alone.
    """
    traits = {words for words, has in _TRAITS.items() if has(plan)}
    if not isinstance(model, Transformer):
        name = ARCHITECTURE_NAMES.get(type(model), type(model).__name__)
        traits.add(f"the architecture {name}")
    if not plan.remat.scan_layers and fill >= SQUEEZED:
        traits.add("layers without a scan near the limit")
    if model.has_experts:
        traits.add("experts")
    if getattr(model, "tied_embeddings", False):
        traits.add("tied embeddings")
    if not trained:
        traits.add("no backward pass")
    return HbmFeatures(
        chip=pod.chip.generation, devices=pod.devices, traits=frozenset(traits), fill=fill
    )
