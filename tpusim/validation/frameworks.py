"""What the framework of a run decides where the table does not: whose programs, which defaults."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpusim.validation.measured import Measured


@dataclass(frozen=True, slots=True)
class Framework:
    """style: whose programs its own are lowered as. optimizer, param_dtype: its defaults."""

    style: str
    optimizer: str = "adam"
    param_dtype: str = "f32"


FRAMEWORKS: Mapping[str, Framework] = {
    "maxtext": Framework("maxtext"),
    "axlearn": Framework("maxtext"),
    "torchprime": Framework("maxtext", "adafactor", "bf16"),
    "lingvo": Framework("plain"),
    "levanter": Framework("plain"),
}
"""Programs like MaxText's have layers in a scan, sharding by logical rules or their equivalent, and
the flags that make gathers asynchronous: assumed for AXLearn and torchprime. Levanter sets no flags
of its own: what its llamas of 130M to 1.2B parameters, written out and compiled for 16-way FSDP on
v5p 2x2x4, use twice in the backward pass is gathered synchronously (libtpu 0.0.42.1). torchprime
trains in bf16, weights too, with Adafactor (AI-Hypercomputer/torchprime,
torch_xla_models/configs/default.yaml: `torch_dtype: bfloat16`, `optimizer: type: adafactor`)."""

PLAIN = Framework("plain")
OPTIMIZERS = ("adafactor", "adam", "sgd")


def framework_of(run: Measured) -> Framework:
    """The framework that the run names, or plain JAX."""
    return FRAMEWORKS.get(run.framework, PLAIN)


def optimizer_of(run: Measured) -> tuple[str, str]:
    """The optimizer that comes nearest, and a note where it is not the run's."""
    written = run.optimizer.lower()
    for name in OPTIMIZERS:
        if name in written:
            return name, ""
    taken = framework_of(run).optimizer
    if run.framework in FRAMEWORKS and not run.optimizer:
        return taken, f"the optimizer (not given) is taken as {run.framework}'s own, {taken}"
    return taken, f"the optimizer ({run.optimizer or 'not given'}) is taken as {taken}"
