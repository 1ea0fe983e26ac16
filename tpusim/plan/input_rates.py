"""The rates that an input pipeline has by default, as `input_rates.toml` has them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tpusim.base.shipped_table import shipped_table
from tpusim.base.units import format_bytes, format_rate, format_seconds


class InputRate(NamedTuple):
    """A number of an input pipeline with its source.

    value: SI; a plain number where `unit` is empty.
    range: the ends between which an assumed value may be.
    """

    value: float
    unit: str
    kind: str
    source: str
    range: Sequence[float] = ()

    def __str__(self) -> str:
        ends = "" if not self.range else " ({} to {})".format(*map(self._shown, self.range))
        return f"{self._shown(self.value)}{ends}, {self.kind}: {self.source}"

    def _shown(self, value: float) -> str:
        if self.unit == "s":
            return format_seconds(value)
        if self.unit == "B":
            return format_bytes(value)
        return format_rate(value, self.unit) if self.unit else f"{value:g}"


def _read_rates() -> dict[str, Any]:
    table = shipped_table("plan", "input_rates.toml")
    return {name: _rates(row) for name, row in table.items()}


def _rates(row: dict[str, Any]) -> Any:
    """Return the rate of a row, or those of its rows by kind of record or by codec."""
    if "by_codec" in row:
        values = row.pop("by_codec")
        return {codec: InputRate(value=value, **row) for codec, value in values.items()}
    if "value" in row:
        return InputRate(**row)
    return {kind: InputRate(**each) for kind, each in row.items()}


RATES = _read_rates()
"""Each rate by its key of `Input`; of some, those by kind of record or by codec."""

TOKEN_BYTES = 4
"""Bytes of a token in a stored record, int32."""

KINDS = tuple(RATES["decode_s"])
"""Kinds of records."""

STORED_COMPRESSED = ("jpeg", "audio")
"""Kinds whose records a codec makes no smaller."""


def rate_lines() -> list[str]:
    """Return the rates with their sources, a line each."""
    tables = {
        "bytes of a record": RATES["record_bytes"],
        "decoding of a record": RATES["decode_s"],
        "decompression": RATES["decompress_rate"],
        "compression ratio": RATES["compression_ratio"],
    }
    named = {f"{what}, {key}": rate for what, each in tables.items() for key, rate in each.items()}
    named |= {name: RATES[name] for name in ("read_latency", "reader_bandwidth", "batch_rate")}
    return [f"{name}: {rate}" for name, rate in named.items()]
