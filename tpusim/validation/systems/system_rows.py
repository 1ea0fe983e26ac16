"""Rows of tables of measured systems, of either form, as one kind of data.

One form has the dimensions of a language model in columns (`paper`, `n_layers`, `mesh_sharding`,
...), the other the name of a published model (`model`, `input`, `parallelism`, ...). Cells are free
text: `12+12`, `256K tokens`, `8x8 chips x 2 cores`, `0.19-0.23 (derived)`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tpusim.base.errors import PlanError

FORMS: Mapping[str, tuple[str, ...]] = {
    "dimensions": ("id", "paper", "chip", "num_chips", "mesh_sharding"),
    "models": ("id", "model", "chip", "num_chips", "parallelism"),
}
"""The columns by which a table shows its form."""

_FACTORS = {"": 1, "k": 1024, "m": 1024**2}
_TOPOLOGY = re.compile(r"\b\d+x\d+(?:x\d+)?\b")


@dataclass(frozen=True, slots=True)
class SystemRow:
    """One measured system; text is in lower case, and numbers that are not given are 0.

    system: words that name the model: the paper and its table, or the model and its task.
    chips: chips of all slices; 0 where the cell is no number.
    topology: of one slice; empty where it is not given.
    sharding: words on how the model is divided.
    layers: of the whole model, or of encoder and decoder.
    sizes: columns of dimensions, those that are given: `d_model`, `d_ff`, `n_heads`, ....
    experts, remat, dtype, optimizer, input: the words of these columns.
    tokens: tokens per step, where the batch is given so.
    notes: the words of all other columns.
    cells: the row as it is written.
    """

    id: str
    system: str
    chip: str
    chips: int
    topology: str
    sharding: str
    layers: tuple[int, ...]
    sizes: Mapping[str, int]
    experts: str
    remat: str
    dtype: str
    optimizer: str
    input: str
    batch: int
    tokens: int
    notes: str
    cells: Mapping[str, str]

    @property
    def words(self) -> str:
        """All that the row says of its model and run."""
        return " | ".join((self.system, self.input, self.sharding, self.notes))


def form_of(header: tuple[str, ...]) -> str:
    """Return the form of a table. Raise PlanError if it has the columns of neither."""
    for form, columns in FORMS.items():
        if set(columns) <= set(header):
            return form
    expected = " or ".join(", ".join(columns) for columns in FORMS.values())
    raise PlanError(f"the table has the columns {', '.join(header)}; it needs {expected}")


def system_row(cells: Mapping[str, str]) -> SystemRow:
    """Return a row of a table."""
    low = {key: (value or "").strip().lower() for key, value in cells.items()}
    system = " ".join(
        low.get(key, "") for key in ("paper", "table_or_figure", "model", "task")
    ).strip()
    names = ("d_model", "d_ff", "n_heads", "head_dim", "seq_len", "microbatches", "pipeline_stages")
    sizes = {name: count(low.get(name, "")) for name in names if count(low.get(name, ""))}
    sizes |= dict(zip(("vocab", "target_vocab"), counts(low.get("vocab", "")), strict=False))
    batch = low.get("global_batch", "")
    is_tokens = "token" in batch
    used = {"id", "paper", "table_or_figure", "model", "task", "chip", "num_chips", "source"}
    return SystemRow(
        id=cells.get("id", ""),
        system=system,
        chip=low.get("chip", ""),
        chips=chips_of(low),
        topology=_topology(low.get("topology", "")),
        sharding=low.get("mesh_sharding", "") or low.get("parallelism", ""),
        layers=tuple(counts(low.get("n_layers", ""))),
        sizes=sizes,
        experts=low.get("experts", ""),
        remat=low.get("remat", ""),
        dtype=low.get("dtype", ""),
        optimizer=low.get("optimizer", ""),
        input=low.get("input", ""),
        batch=0 if is_tokens else count(batch),
        tokens=count(batch) if is_tokens else 0,
        notes=" | ".join(value for key, value in low.items() if value and key not in used),
        cells=cells,
    )


def chips_of(low: Mapping[str, str]) -> int:
    """Return the number of chips, 0 if it is none; slices are a product, `2 x 512`."""
    text = low.get("num_chips", "")
    return prod(counts(text)) if re.fullmatch(r"\d[\d,\sx]*", text) else 0


def _topology(text: str) -> str:
    """Return the shape that a cell names, unless it names devices (`4x2 cores`)."""
    found = _TOPOLOGY.search(text)
    if found is None or text[found.end() :].strip().startswith("core"):
        return ""
    return found[0]


def counts(text: str) -> Iterator[int]:
    """Yield the whole numbers of a cell: 12 and 12 of `12+12`, 262144 of `256K tokens`."""
    for digits, factor in re.findall(r"(\d[\d,]*(?:\.\d+)?)(k|m)?\b", text.lower()):
        yield round(float(digits.replace(",", "")) * _FACTORS[factor])


def count(text: str) -> int:
    """Return the first whole number of a cell, 0 if there is none."""
    return next(iter(counts(text)), 0)
