"""Which layers see a window of the keys."""

from collections.abc import Sequence
from typing import Any

from tpusim.models.hf.config import Config
from tpusim.models.hf.file import shown

PATTERN = "sliding_window_pattern"
LOCAL, WHOLE = "sliding_attention", "full_attention"


def windows(config: Config, layers: int) -> dict[str, int]:
    """`window` and `global_every` of the `Transformer`; neither where all layers see all keys."""
    if config.family.windows == "none":
        return {}
    if "use_sliding_window" in config.family.defaults and not config.flag("use_sliding_window"):
        return {}
    window = config.count("sliding_window")
    if window is None:
        return {}
    every = _every(config, _types(config, layers))
    return {} if every == 1 else {"window": window, "global_every": every}


def _types(config: Config, layers: int) -> Sequence[Any]:
    """The kind of attention of each layer, as written or as the family's class has it."""
    written = config.value("layer_types")
    if written is not None:
        if not isinstance(written, list) or len(written) != layers:
            raise config.fault(
                f"layer_types is {shown(written)}; write a list of {layers} kinds, one a layer"
            )
        return written
    if config.family.windows == "all":
        return [LOCAL] * layers
    if config.family.windows == "last":
        first = config.count("max_window_layers", least=0) or 0
        return [LOCAL if i >= first else WHOLE for i in range(layers)]
    if config.family.windows == "alternate":
        end = config.count("max_window_layers", least=0) or 0
        return [LOCAL if i % 2 == 0 and i < end else WHOLE for i in range(layers)]
    every = config.count(PATTERN) or config.family.defaults[PATTERN]
    return [WHOLE if (i + 1) % every == 0 else LOCAL for i in range(layers)]


def _every(config: Config, types: Sequence[Any]) -> int:
    """Each so many-th layer sees all keys; 0 for none of them, 1 for all."""
    for i, kind in enumerate(types):
        if kind not in (LOCAL, WHOLE):
            raise config.fault(
                f"layer_types[{i}] is {shown(kind)}, which cannot be simulated; "
                f"write {LOCAL} or {WHOLE}"
            )
    every = types.index(WHOLE) + 1 if WHOLE in types else 0
    for i, kind in enumerate(types):
        if (kind == WHOLE) != (every > 0 and (i + 1) % every == 0):
            raise config.fault(
                f"layer {i} has {kind}, which breaks the pattern of those before; only patterns "
                f"that repeat and end with {WHOLE} can be simulated"
            )
    return every
