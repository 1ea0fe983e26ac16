"""Frameworks of measured runs: the style of their programs, their default optimizer and dtype."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpusim.validation.measured_runs import MeasuredRun


@dataclass(frozen=True, slots=True)
class Framework:
    """A training framework.

    style: `Plan.style` of its programs.
    optimizer, param_dtype: its defaults.
    int8_gathers: the operands of its int8 matmuls are quantised before they are gathered.
    """

    style: str
    optimizer: str = "adam"
    param_dtype: str = "f32"
    int8_gathers: bool = False


FRAMEWORKS: Mapping[str, Framework] = {
    "maxtext": Framework("maxtext", int8_gathers=True),
    "axlearn": Framework("maxtext"),
    "torchprime": Framework("maxtext", "adafactor", "bf16"),
    "lingvo": Framework("plain"),
    "levanter": Framework("plain"),
    "paxml": Framework("maxtext", int8_gathers=True),
    "jax-shard_map": Framework("plain"),
    "torch_xla-fsdp": Framework("plain"),
}
"""MaxText's style is layers in a scan, sharding by logical rules or their equivalent, and the flags
that make gathers asynchronous; it is assumed for AXLearn, torchprime and Paxml. Paxml's layers are
in a scan too, and its rules shard the embed dimension of activations between layers over the axis
of the model (the 175B run would not fit otherwise: the inputs of its layers alone are 39 GB a
chip). Code of one's own with shard_map and an explicit psum has what it writes: activations that
are replicated over the heads' axis. PyTorch/XLA's FSDP gathers synchronously (its post of 2022 says
so), as plain JAX does. Levanter sets no flags of
its own: in its llamas of 130M to 1.2B parameters, written out and compiled for 16-way FSDP on v5p
2x2x4, what the backward pass uses twice is gathered synchronously (libtpu 0.0.42.1). torchprime
trains in bf16, weights included, with Adafactor (AI-Hypercomputer/torchprime,
torch_xla_models/configs/default.yaml: `torch_dtype: bfloat16`, `optimizer: type: adafactor`).

int8 of MaxText and Paxml is AQT's, which quantises whole arrays, not each device's part: the
compiler divides its arithmetic, and gathers what it multiplies. MaxText's own program for its
GPT3 175B on v6e 16x16 gathers weights in s8, and so do programs with the same arithmetic for v5e,
v5p and v6e, there also activations (`lowering/passes/gather_quantised.py`). MaxText's fp8 is
Qwix's: the kernels of experts gather bf16, and fp8 only under a fixed calibration; of its dense
matmuls no program was seen."""

PLAIN_JAX = Framework("plain")
RECOGNISED_OPTIMIZERS = ("adafactor", "adam", "sgd")


def framework_of(run: MeasuredRun) -> Framework:
    """Return the framework that the run names, or plain JAX."""
    return FRAMEWORKS.get(run.framework, PLAIN_JAX)


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
