"""Words of an exported program: names of dimensions, tensors and dtypes, shardings, calls."""

import keyword
import re
from collections.abc import Sequence

from tpusim.base.errors import PlanError
from tpusim.export.library_source import library_names
from tpusim.graph import COMPUTE, TILE, Tensor
from tpusim.partition import Layout

DTYPES = {
    "bf16": "jnp.bfloat16", "f32": "jnp.float32", "int8": "jnp.int8", "fp8": "jnp.float8_e4m3fn",
    COMPUTE: "COMPUTE", "pred": "jnp.bool_", "s32": "jnp.int32",
}  # fmt: skip
"""JAX's name of each dtype."""

TAKEN = {"w", "jax", "jnp", "lax", "loss", "tiles", "shard"}
"""Names that an exported program has besides its tensors."""

TARGET_MARK = "target_"
"""Before the name of the tokens of a target, where a model has a source and a target."""


def constant_name(dim: str) -> str:
    """Return the name of the constant that has the size of a dimension: `KV_HEADS`."""
    made = re.sub(r"\W", "_", dim).upper()
    return f"N{made}" if made[0].isdigit() else made


def value_name(tensor: Tensor) -> str:
    """Return the name of the variable that holds a tensor: `attn_norm` of `layer/attn_norm`."""
    name = tensor.name
    tile = name.startswith(TILE)
    return _identifier(_own(name.removeprefix(TILE)) + ("_tile" if tile else ""))


def target_name(ids: Tensor) -> str:
    """Return the variable of the tokens that follow `ids`, which the loss compares logits with.

    They are `targets` of `ids`, and of the `target_ids` of a decoder, which reads them shifted.
    """
    return value_name(ids).replace("ids", "targets", 1).removeprefix(TARGET_MARK)


def function_name(scope: str) -> str:
    """Return the name of the function of a layer: `image_layer` of `image/layer`."""
    return _identifier(scope)


def weight_name(tensor: Tensor) -> str:
    """Return the key of a weight among those of its scan, or of the model."""
    return _identifier(_own(tensor.name.removeprefix(TILE)))


def _own(name: str) -> str:
    """Return a name without that of its layer; a layer of a pattern keeps its number.

    The name of what is in no layer is its own as a whole.
    """
    scopes = name.split("/")
    layers = [place for place, scope in enumerate(scopes[:-1]) if scope.endswith("layer")]
    if not layers:
        return name
    number, _, last = "/".join(scopes[layers[0] + 1 :]).partition("/")
    return f"{last}_{number}" if last else number


def _identifier(name: str) -> str:
    made = re.sub(r"\W", "_", name)
    made = f"at_{made}" if made[0].isdigit() else made
    taken = keyword.iskeyword(made) or made in TAKEN or made in library_names()
    return f"{made}_" if taken else made


def spec(layout: Layout, lead: Sequence[str] = ()) -> str:
    """Return a layout as source: `P("fsdp", None, "tensor")`.

    lead: entries of dimensions before those of the layout.
    """
    entries = [*lead, *map(entry, layout)]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def entry(axes: Sequence[str]) -> str:
    """Return the axes of one dimension as source: `("data", "fsdp")`."""
    quoted = [f'"{axis}"' for axis in axes]
    if len(quoted) < 2:
        return quoted[0] if quoted else "None"
    return f"({', '.join(quoted)})"


def call(function: str, *given: str) -> str:
    """Return the source of a call."""
    return f"{function}({', '.join(given)})"


def unsaid(name: str, what: str) -> PlanError:
    """Return the error for a part of a step that cannot be written as JAX."""
    return PlanError(f"{name} is {what}, which tpusim cannot write as JAX yet")
