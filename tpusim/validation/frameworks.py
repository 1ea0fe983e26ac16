"""Frameworks of measured runs: the style of their programs, their default optimizer and dtype."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpusim.models import Transformer
from tpusim.validation.measured_runs import MeasuredRun


@dataclass(frozen=True, slots=True)
class Framework:
    """A training framework.

    style: `Plan.style` of its programs.
    optimizer, param_dtype: its defaults.
    loop: `Plan.loop` of its trainer.
    without_rings: generations on which its recipes switch collective matmuls off.
    int8_gathers: the operands of its int8 matmuls are quantised before they are gathered.
    int8_noise: dtype of the random numbers that round gradients to int8; empty for none.
    gradient_reduction: `Plan.gradient_reduction` of its gradient accumulation.
    layers: flat keys of `Transformer` that its own models have, by a pattern of the name's start.
    scan_layers: its layers are a scan, unless remarks say otherwise.
    """

    style: str
    optimizer: str = "adam"
    param_dtype: str = "f32"
    loop: str = "asynchronous"
    without_rings: tuple[str, ...] = ()
    int8_gathers: bool = False
    int8_noise: str = ""
    gradient_reduction: str = "per-microbatch"
    layers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scan_layers: bool = True


_GPT3: Mapping[str, Mapping[str, Any]] = {r"gpt[\W_]*3(?!\d)": {"fused_qkv": True}}
"""GPT-3 has one matrix for queries, keys and values: in MaxText (configs/models/gpt3-175b.yml,
`fused_qkv`), and in Paxml (`CombinedQKVProjectionLayer` in quant_aqt_v2.py of its MLPerf 3.1)."""

_GPT2: Mapping[str, Mapping[str, Any]] = {r"hf-gpt2(?!\d)": {"dropout": 0.1}}
"""GPT-2 in PyTorch is Hugging Face's, whose config drops a tenth of the embeddings, of the results
of attention and MLP and of the probabilities (transformers, configuration_gpt2.py: `embd_pdrop`,
`resid_pdrop`, `attn_pdrop`)."""

FRAMEWORKS: Mapping[str, Framework] = {
    "maxtext": Framework(
        "maxtext", without_rings=("v6e",), int8_gathers=True, int8_noise="u32", layers=_GPT3
    ),
    "axlearn": Framework("maxtext"),
    "torchprime": Framework("maxtext", "adafactor", "bf16"),
    "lingvo": Framework("plain"),
    "levanter": Framework("plain", loop="synchronous"),
    "paxml": Framework("maxtext", int8_gathers=True, int8_noise="u16", layers=_GPT3),
    "jax-shard_map": Framework("plain", gradient_reduction="per-step"),
    "torch_xla-fsdp": Framework("plain", layers=_GPT2, scan_layers=False),
}
"""What is known of each framework, and from where.

MaxText: layers in a scan, sharding by logical rules or their equivalent, and the flags that make
gathers asynchronous. This style is assumed for AXLearn, torchprime and Paxml. Its recipes for v6e
switch collective matmuls off (DISABLE_COLLECTIVE_MATMUL of its
benchmarks/maxtext_trillium_model_configs.py).

int8 of MaxText and Paxml is AQT's, which quantises whole arrays, not each device's part: the
compiler divides its arithmetic, and gathers what it multiplies. MaxText's own program for its GPT3
175B on v6e 16x16 gathers weights in s8, and so do programs with the same arithmetic for v5e, v5p
and v6e, there also activations (`lowering/passes/gather_quantised.py`). Gradients are rounded
stochastically, with noise of 32 bits in MaxText (`rng_type="jax.uniform"` in its
layers/quantizations.py) and of 16 in Paxml (`custom-1` in quant_aqt_v2.py). MaxText's fp8 is
Qwix's: the kernels of experts gather bf16, and fp8 only under a fixed calibration; of its dense
matmuls no program was seen.

Paxml: its rules shard the embed dimension of activations between layers over the axis of the model
(the 175B run would not fit otherwise: the inputs of its layers alone are 39 GB a chip).

torchprime trains in bf16, weights included, with Adafactor (AI-Hypercomputer/torchprime,
torch_xla_models/configs/default.yaml: `torch_dtype: bfloat16`, `optimizer: type: adafactor`).

Levanter sets no flags of its own: in its llamas of 130M to 1.2B parameters, written out and
compiled for 16-way FSDP on v5p 2x2x4, what the backward pass uses twice is gathered synchronously
(libtpu 0.0.42.1). Its trainer reads the loss of each step (`loss.item()` in trainer.py) and
measures the step with it.

Code of one's own with shard_map and an explicit psum has what it writes: activations that are
replicated over the heads' axis, and gradients that a device adds up over its microbatches before
the psum, as the compiler adds no collective to those of a shard_map. PyTorch/XLA's FSDP gathers
synchronously (its post of 2022 says so), as plain JAX does; it wraps modules, all of which are
traced (`torch_xla.experimental.scan` is of its release 2.6, 2025).
"""

PLAIN_JAX = Framework("plain")
RECOGNISED_OPTIMIZERS = ("muon", "adafactor", "adam", "sgd")
"""Optimizers of a plan, by the word for them in those of runs. Levanter's `adamh` and `muonh` are
Adam and Muon that keep the norm of each matrix. The norms are a pass more over the weights and two
all-reduces of some numbers per step: 0.4 ms for 1.1B parameters, compiled for v5p 2x2x4 with and
without them (libtpu 0.0.42.1). Cautious Adam has a mask, in the same pass."""


UNCHECKED_UNTIL = "2026-08"
"""Year and month until which MaxText checkpoints no layers that have embeddings of their own.

They are not scanned (`scan_layers` must be false), and that path had no `jax.checkpoint` until its
pull request 4847. So the compiler, not JAX, chooses what is kept (`Remat.left_to_compiler`).
"""


def ignores_remat(run: MeasuredRun, model: Transformer) -> bool:
    """Return True if the run's framework applies no remat policy to the layers of this model."""
    ours = run.framework == "maxtext" and model.layer_embed > 0
    return ours and run.date[: len(UNCHECKED_UNTIL)] <= UNCHECKED_UNTIL


def framework_of(run: MeasuredRun) -> Framework:
    """Return the framework that the run names, or plain JAX."""
    return FRAMEWORKS.get(run.framework, PLAIN_JAX)


def layers_of(run: MeasuredRun) -> dict[str, Any]:
    """Return the flat keys of `Transformer` that the framework's own model of this name has."""
    own = framework_of(run).layers.items()
    found = (keys for pattern, keys in own if re.match(pattern, run.model.lower()))
    return {key: value for keys in found for key, value in keys.items()}


def optimizer_of(run: MeasuredRun) -> tuple[str, str]:
    """Return the nearest optimizer, and a note if it is not the one of the run."""
    written = run.optimizer.lower()
    for name in RECOGNISED_OPTIMIZERS:
        if name in written:
            return name, ""
    taken = framework_of(run).optimizer
    if run.framework in FRAMEWORKS and not run.optimizer:
        return taken, f"the optimizer (not given) is taken as {run.framework}'s own, {taken}"
    return taken, f"the optimizer ({run.optimizer or 'not given'}) is taken as {taken}"
