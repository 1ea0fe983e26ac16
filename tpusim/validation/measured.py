"""One measured run: the fields are the columns of the table, see docs/validation.md."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

from tpusim.errors import FileError, nearest

MOST = 10**9
LONGEST = 60
TRUTH = {"0": False, "1": True, "false": False, "true": True}
WANTED = {
    int: f"a whole number from 1 to {MOST:,}",
    float: "a number above 0",
    bool: "0 or 1",
    str: "a text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run as its source describes it. Text is as written, 0 where a number is not given.

    step_s: seconds a step. params_b: parameters in billions. mfu_half_causal_pct: measured MFU in
    percent. mesh: `axis=size;...`. The other columns are explained in docs/validation.md.
    """

    id: str
    chip: str
    topology: str
    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    vocab: int
    seq_len: int
    global_batch: int
    mesh: str
    step_s: float
    num_slices: int = 1
    num_chips: int = 0
    model: str = ""
    params_b: float = 0.0
    n_kv_heads: int = 0
    head_dim: str = ""
    mlp_matrices: int = 3
    experts: int = 0
    experts_per_token: int = 0
    capacity_factor: float = 0.0
    expert_exchange: str = ""
    causal: bool = True
    mesh_counts: str = ""
    remat: str = "full"
    save: str = ""
    offload: str = ""
    vocab_tiles: int = 0
    framework: str = ""
    dtype: str = "bf16"
    optimizer: str = ""
    attention: str = ""
    step_is: str = ""
    mfu_half_causal_pct: float = 0.0
    confidence: str = ""
    date: str = ""
    source: str = ""
    notes: str = ""


KINDS: Mapping[str, Any] = get_type_hints(Measured)
NEEDED = tuple(field.name for field in fields(Measured) if field.default is MISSING)


def measured_runs(
    header: Sequence[str], rows: Sequence[Mapping[str, str]]
) -> tuple[tuple[Measured, ...], tuple[str, ...]]:
    """The runs of a table, and those of its columns that nothing reads.

    An empty cell is one that is not there. Raises `FileError` for a column that is missing,
    doubled, or misspelt, for an empty table, a cell of the wrong kind, and an id given twice.
    """
    unread = _check_header(header)
    if not rows:
        raise FileError("the table has a header and no runs; write a row a run")
    runs = tuple(_run(row, f"row {number}") for number, row in enumerate(rows, 1))
    twice = [name for name, count in Counter(run.id for run in runs).items() if count > 1]
    if twice:
        raise FileError(f"the id {_cut(twice[0])} stands in several rows; give each run its own")
    return runs, unread


def _check_header(header: Sequence[str]) -> tuple[str, ...]:
    doubled = [name for name, count in Counter(header).items() if count > 1]
    if doubled:
        raise FileError(f"the column {_cut(doubled[0])} stands twice in the header; remove one")
    unread = tuple(name for name in header if name not in KINDS)
    for name in NEEDED:
        if name not in header:
            raise FileError(f"the column {name} is missing; {_found_instead(name, unread)}")
    for name in unread:
        close = nearest(name, [known for known in KINDS if known not in header])
        if close.startswith("did you mean"):
            raise FileError(f"no column is called {_cut(name)}; {close}")
    return unread


def _found_instead(name: str, unread: Sequence[str]) -> str:
    """What the table may have meant by another name."""
    close = nearest(name, [column[:LONGEST] for column in unread])
    if close.startswith("did you mean"):
        return f"rename the column that you mean ({close.removeprefix('did you mean ')}"[:-1] + ")"
    return f"the columns that every run needs are {', '.join(NEEDED)}, separated by commas"


def _run(row: Mapping[str, str], where: str) -> Measured:
    where = f"{where} ({_cut(row['id'])})" if row["id"] else where
    return Measured(
        **{
            name: _value(name, row.get(name, ""), where)
            for name in KINDS
            if name in NEEDED or row.get(name, "")
        }
    )


def _value(name: str, text: str, where: str) -> Any:
    """A cell as its column's type."""
    kind = KINDS[name]
    if kind is str and text and text.isprintable():
        return text
    if kind is bool and text.lower() in TRUTH:
        return TRUTH[text.lower()]
    if kind in (int, float) and (number := _number(text, whole=kind is int)):
        return number
    found = f"is {_cut(text)}" if text else "is empty"
    raise FileError(f"{where}: {name} {found}; write {WANTED[kind]}")


def _number(text: str, *, whole: bool) -> int | float | None:
    """The number, or None where it is none that can be used."""
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number) or number <= 0:
        return None
    if not whole:
        return number
    return int(number) if number.is_integer() and number <= MOST else None


def _cut(text: str) -> str:
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")
