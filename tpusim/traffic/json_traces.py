"""Traces in JSON: Mooncake's lines, and ShareGPT's conversations with counts of tokens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tpusim.base.close_names import close_names, listed
from tpusim.base.errors import TrafficError
from tpusim.base.plain_text import plain
from tpusim.base.shown_value import shown
from tpusim.base.text_files import read_bytes
from tpusim.traffic.checks import MOST_REQUESTS, MOST_TOKENS, whole
from tpusim.traffic.trace_rows import TraceRows, fault_of

BLOCK = 512
"""Tokens of a block of Mooncake's `hash_ids`."""

LARGEST_BYTES = 2**31

KEYS = ("timestamp", "input_length", "output_length")
HASHES = "hash_ids"
TOKENS = "tokens"
"""The key of a turn of a ShareGPT conversation that holds the tokens of its `value`."""


class MooncakeTrace(NamedTuple):
    """The rows of a Mooncake trace, times in ms, and the hashes of each prompt; none if unknown."""

    rows: TraceRows
    prefixes: tuple[tuple[int, ...], ...]


def read_mooncake_trace(path: Path, instead: str) -> MooncakeTrace:
    """Return the rows of a Mooncake trace, one JSON object a line.

    Keys: `timestamp` (ms), `input_length`, `output_length`, and `hash_ids`, one a block of 512
    tokens (github.com/kvcache-ai/Mooncake, FAST25-release/traces).

    Raise TrafficError for a line that cannot be read.
    """
    columns: tuple[list[float], ...] = ([], [], [])
    lines: list[int] = []
    prefixes: list[tuple[int, ...]] = []
    for line, value in _lines(read_bytes(path, "a trace", instead, LARGEST_BYTES)):
        for key, column in zip(KEYS, columns, strict=True):
            column.append(_number(line, key, value))
        lines.append(line)
        prefixes.append(_hashes(line, value, columns[1][-1]))
        if len(lines) > MOST_REQUESTS:
            raise TrafficError(f"more than {MOST_REQUESTS:,} requests; split the file")
    rows = TraceRows(*(np.array(column, dtype=np.float64) for column in columns))
    if fault := fault_of(rows, KEYS):
        said = f"{columns[KEYS.index(fault.column)][fault.row]:.15g}{fault.clause}"
        raise TrafficError(f"line {lines[fault.row]}: {fault.column} is {said}")
    return MooncakeTrace(rows, tuple(prefixes) if any(prefixes) else ())


def _lines(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not text.strip():
            continue
        value = _parsed(text, f"line {line}", "write one JSON object a line")
        if not isinstance(value, dict):
            raise TrafficError(
                f"line {line} is {shown(value)}; write one JSON object a line, with {listed(KEYS)}"
            )
        yield line, value


def _parsed(text: bytes, where: str, instead: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TrafficError(f"{where} is no JSON ({error}); {instead}") from error


def _number(line: int, key: str, value: dict[str, Any]) -> float:
    if key not in value:
        close = close_names(key, [each for each in value if each not in KEYS])
        names = listed([plain(each) for each in value])
        advice = f"rename {close[0]!r} to it" if close else f"the line has {names}"
        raise TrafficError(f"line {line} has no {key!r}, which a Mooncake trace has; {advice}")
    found = value[key]
    if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > 2**53:
        raise TrafficError(f"line {line}: {key} is {shown(found)}; write a number")
    return float(found)


def _hashes(line: int, value: dict[str, Any], tokens: float) -> tuple[int, ...]:
    found = value.get(HASHES) or []
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        raise TrafficError(
            f"line {line}: {HASHES} is {shown(found)}; write a list of whole numbers"
        )
    if len(found) > -(-tokens // BLOCK) > 0:
        raise TrafficError(
            f"line {line}: {len(found)} {HASHES} for {tokens:.0f} tokens; "
            f"write one for each block of {BLOCK} tokens"
        )
    return tuple(found)


def read_sharegpt(path: Path, instead: str) -> tuple[TraceRows, int]:
    """Return the first two turns of each conversation as a request, and how many have fewer.

    As `vllm bench serve --dataset-name sharegpt`: the first turn is the prompt, the second one the
    output, and conversations with fewer turns are left out. There are no arrivals: all times are 0.

    Both turns must have `tokens`, the number of tokens of `value`, which depends on the model:
    `[{"conversations": [{"from": "human", "value": "...", "tokens": 12}, ...]}]`.

    Raise TrafficError for a file without such counts.
    """
    content = read_bytes(path, "a trace", instead, LARGEST_BYTES)
    found = _parsed(content.removeprefix(b"\xef\xbb\xbf"), "the file", "give a whole ShareGPT file")
    lengths: list[tuple[int, int]] = []
    for at, entry in enumerate(found, 1):
        turns = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(turns, list):
            raise TrafficError(
                f"conversation {at} has no list 'conversations'; write a ShareGPT file: "
                '[{"conversations": [{"from": "human", "value": "...", "tokens": 12}, ...]}]'
            )
        if len(turns) >= 2:
            lengths.append((_turn(at, 1, turns[0]), _turn(at, 2, turns[1])))
    prompt, output = np.array(lengths, dtype=np.float64).reshape(-1, 2).T
    return TraceRows(np.zeros(len(lengths)), prompt, output), len(found) - len(lengths)


def _turn(at: int, number: int, turn: Any) -> int:
    where = f"conversation {at}, turn {number}"
    if not isinstance(turn, dict) or TOKENS not in turn:
        raise TrafficError(
            f"{where} has no {TOKENS!r}; count the tokens of each 'value' with the tokenizer of "
            f"the model, and write them as {TOKENS!r} beside it"
        )
    return whole(f"{where}: {TOKENS}", turn[TOKENS], MOST_TOKENS)
