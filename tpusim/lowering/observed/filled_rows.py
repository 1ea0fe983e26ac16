"""Images of few examples that are not cut: tiles of memory have at least so many rows.

The smallest tile of 16-bit elements has two rows, on v2 and v3 four, which fewer examples do not
fill; each position takes a tile.
"""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.graph import Convolution
from tpusim.lowering.body_entries import Entry
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.lowering.observed.image_cuts import extents_of
from tpusim.lowering.observed.image_passes import ImagePasses
from tpusim.partition import Arrangement, ComputeNode


def fill_rows(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Return the entries with images of few examples that fill the rows of a tile.

    U-Nets of volumes and ResNets with 2 examples a device on v2 and v3 have `T(4,128)` tiles, and
    hold and move twice the bytes of their images; with 4 no row is empty. With one on v4 to 7x,
    what is not cut has `T(2,128)` (libtpu 0.0.42.1).
    """
    rows = body.ask(_image_rows)
    images = ImagePasses(body)
    few = any(
        extents_of(entry, body).examples < rows
        for entry in entries
        if isinstance(entry, ComputeNode) and isinstance(entry.op, Convolution)
    )
    if not few:
        return list(entries)
    filled = Arrangement(rows=rows)
    made: list[Entry] = []
    for entry in entries:
        if isinstance(entry, ComputeNode) and entry.arrangement is None:
            entry = replace(entry, arrangement=filled)
        for key in entry.writes if isinstance(entry, ComputeNode) else ():
            buffer = body.buffers[key]
            if images.is_image(key) and buffer.local.arrangement is None:
                local = replace(buffer.local, arrangement=filled)
                body.buffers[key] = replace(buffer, local=local)
        made.append(entry)
    return made


def _image_rows(decisions: LoweringDecisions) -> int:
    return decisions.chip.compiler_rules.image_rows
