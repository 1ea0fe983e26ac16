"""The adapters of a config (LoRA): `lora.lora_module_path` says which modules have some.

MaxText gives them to the modules whose whole path its expression matches (utils/lora_utils.py, with
Qwix), trains them alone, and keeps neither gradients nor optimizer state of the base weights.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from tpusim.base.errors import nearest
from tpusim.base.shown_value import cut, shown
from tpusim.maxtext.config import MaxTextConfig
from tpusim.maxtext.shipped_tables import shipped
from tpusim.models import Transformer

PATH = "lora.lora_module_path"
LAYERS = r"layers(?:_[0-9]+|/[0-9]+)?/"
"""What `layers/` of MaxText's own expressions stands for: with a layer's number, or without."""


def adapters_of(config: MaxTextConfig, model: Transformer) -> dict[str, Any]:
    """Return the rank of the plan's adapters and the weights that have one; none without LoRA."""
    if not config.flag("lora.enable_lora"):
        return {}
    rank = config.size("lora.lora_rank", least=0)
    if not rank:
        raise config.fault(
            "lora.enable_lora is true, but lora.lora_rank is 0; write the rank of the adapters, "
            "such as lora.lora_rank=16"
        )
    blocks = shipped("adapters")["blocks"]
    block = {**blocks["default"], **blocks.get(config.text("decoder_block"), {})}
    paths = {
        parameter.tensor.name: tuple(_paths(parameter.tensor.name, block))
        for parameter in model.graph(batch=1, seq_len=1).parameters
    }
    wanted = _expression(config, block)
    chosen = [name for name, own in paths.items() if any(map(wanted.fullmatch, own))]
    if not chosen:
        known = sorted({path for own in paths.values() for path in own})
        raise config.fault(
            f"{PATH} is {shown(wanted.pattern)}, which matches no whole path of a module; "
            f"{nearest(wanted.pattern, known, f'write one that matches {known[0]}, say')}"
        )
    return {"adapter_rank": rank, "adapter_weights": _in_short(chosen, paths)}


def _in_short(chosen: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return what follows the last slash, where all weights that have it are chosen."""
    of_others = {name.rpartition("/")[2] for name in names if name not in chosen}
    short = (name.rpartition("/")[2] for name in chosen)
    found = zip(chosen, short, strict=True)
    return list(dict.fromkeys(name if end in of_others else end for name, end in found))


def _expression(config: MaxTextConfig, block: Mapping[str, Any]) -> re.Pattern[str]:
    given = config.text(PATH)
    try:
        return re.compile(given or block["path"].replace("layers/", LAYERS))
    except re.error as error:
        raise config.fault(
            f"{PATH} is {shown(given)}, no regular expression: {cut(str(error))}; write one such "
            f"as {block['path']}"
        ) from error


def _paths(name: str, block: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the module of a weight; none for norms, experts and what is no layer's."""
    part, *number, short = name.split("/") if "/" in name else ("", name)
    module = shipped("adapters")["modules"].get(short)
    if module is None:
        return
    kind = re.findall(r"{(\w+)}", module)[0]
    for layer, own in product(block.get(part, block["layer"]), block.get(kind, ())):
        yield f"{layer}/{module}".format(i=number[0] if number else 0, **{kind: own})
