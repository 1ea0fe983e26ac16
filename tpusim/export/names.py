"""Words of an exported program: names of dimensions, tensors and dtypes, shardings, calls.

A name of the user's enters the source in one of three forms: as an identifier (`value_name`,
`weight_name`, `constant_name`, `function_name`, `local_name`), as a literal (`quoted`) or in the
docstring (`docstring`). Whatever it contains, it is that one token.
"""

import keyword
import re
from collections.abc import Iterable, Sequence

from tpusim.base.errors import PlanError
from tpusim.base.plain_text import visible_lines
from tpusim.export.library_source import library_names, step_names
from tpusim.graph import COMPUTE, TILE, Tensor
from tpusim.partition import Layout

DTYPES = {
    "bf16": "jnp.bfloat16", "f32": "jnp.float32", "int8": "jnp.int8", "fp8": "jnp.float8_e4m3fn",
    COMPUTE: "COMPUTE", "pred": "jnp.bool_", "s32": "jnp.int32",
}  # fmt: skip
"""JAX's name of each dtype."""

TAKEN = {
    "w", "jax", "jnp", "lax", "loss", "tiles", "shard", "LEARNING_RATE", "MICROBATCHES", "REPEATS",
    "STAGES", "TARGETS_SHAPE", "TARGETS_SPEC", "_", "targets", "batch", "parts", "states", "chunk",
    "kv_cache", "kv_lengths", "kv_positions", "kv_pages",
}  # fmt: skip
"""Names that an exported program has besides its tensors, its sizes and those of the library."""

TARGET_MARK = "target_"
"""Before the name of the tokens of a target, where a model has a source and a target."""


_NOT_IN_IDENTIFIERS = re.compile(r"[^0-9A-Za-z_]")
"""Letters of other alphabets are not kept: Python takes several spellings of one for the same."""

_BEFORE_QUOTE_OR_END = re.compile(r'"(?="|\Z)')


def quoted(text: str) -> str:
    """Return a text as a literal: `"fsdp"`; in single quotes only if it has double ones."""
    made = repr(text)
    return made if '"' in made else f'"{made[1:-1]}"'


def docstring(text: str) -> str:
    """Return lines of text as a docstring; U+FFFD stands for characters that cannot be shown."""
    shown = visible_lines(text).replace("\\", "\\\\")
    return f'"""{_BEFORE_QUOTE_OR_END.sub(chr(92) + chr(34), shown)}"""'


def constant_name(dim: str) -> str:
    """Return the name of the constant that has the size of a dimension: `KV_HEADS`."""
    made = _NOT_IN_IDENTIFIERS.sub("_", dim).upper()
    made = made if made[:1].isalpha() else f"N{made}"
    return f"{made}_" if made in TAKEN | step_names() else made


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
    made = _identifier(scope)
    return f"{made}_" if made == "x" else made  # its argument, where it is called in a lambda


def local_name(scan: str) -> str:
    """Return the name of the function within another that is the body of a scan."""
    return _identifier(scan)


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
    made = _NOT_IN_IDENTIFIERS.sub("_", name)
    made = f"at_{made}" if not made or made[0].isdigit() else made
    made = made.lower() if made.isupper() else made  # upper case are sizes
    taken = keyword.iskeyword(made) or made in TAKEN | library_names() | step_names()
    return f"{made}_" if taken else made


def check_distinct(made: Iterable[tuple[str, str]], what: str) -> None:
    """Raise PlanError for two names that would be one identifier.

    made: (identifier, name) of each.
    what: plural of what they name, for the message.
    """
    known: dict[str, str] = {}
    for identifier, name in made:
        if known.setdefault(identifier, name) != name:
            raise PlanError(
                f"the {what} {known[identifier]!r} and {name!r} would both be {identifier} in JAX; "
                "rename one of them"
            )


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
    written = [quoted(axis) for axis in axes]
    if len(written) < 2:
        return written[0] if written else "None"
    return f"({', '.join(written)})"


def call(function: str, *given: str) -> str:
    """Return the source of a call."""
    return f"{function}({', '.join(given)})"


def unsaid(name: str, what: str) -> PlanError:
    """Return the error for a part of a step that cannot be written as JAX."""
    return PlanError(f"{name} is {what}, which tpusim cannot write as JAX yet")
