"""HLO files: text or serialised protos, gzipped or not, and the header line that tpusim adds.

The header is the first line of a file that tpusim saved. It holds as JSON what the HLO itself does
not say:

    // tpusim: {"slice": "v4:8x16x16", ...}

It is a comment in HLO, so other readers skip it.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpusim.base.errors import FileError, blame
from tpusim.base.text_files import read_bytes
from tpusim.base.units import format_bytes
from tpusim.compiler.hlo.module_text import HLO_ADVICE

MAX_HLO_BYTES = 200 * 2**20
"""Size limit of HLO that is read: jaxlib needs about seven times as much memory."""

EXPECTED_HLO = "HLO that the TPU compiler made, as text or as a proto, gzipped or not"

MOST_DEVICES = 2**20
"""Devices that a proto may be assigned to."""


def read_hlo_file(path: str | Path) -> tuple[dict[str, Any] | None, bytes]:
    """Return the facts of tpusim's header line, or None, and the decompressed HLO of a file.

    Raise FileError if it cannot be read.
    """
    with blame(str(path)):
        given = "the path of " + EXPECTED_HLO
        return split_header(decompress(read_bytes(Path(path), EXPECTED_HLO, given, MAX_HLO_BYTES)))


def decompress(data: bytes) -> bytes:
    """Return the data, decompressed if it is gzip. Raise FileError for broken gzip."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        found = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_HLO_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"broken gzip ({error}); compress or copy the file again") from error
    if len(found) > MAX_HLO_BYTES:
        raise FileError(
            f"more than {format_bytes(MAX_HLO_BYTES)} when unzipped, which is too large for HLO; "
            "give the HLO of one program, with the layers in a scan"
        )
    return found


_HLO_TEXT = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|//[^\n]*\n)*HloModule\b")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_MLIR = re.compile(rb"\b(?:stablehlo|mhlo|chlo|sdy|func|builtin|vhlo)\.\w|^module\b", re.MULTILINE)


def parser_request(data: bytes) -> bytes:
    """Return the parser's request for this HLO. Raise FileError for data that is not HLO."""
    if _HLO_TEXT.match(data):
        return data.removeprefix(b"\xef\xbb\xbf")
    if data.startswith(b"ML\xefR"):
        raise FileError(_mlir("MLIR bytecode"))
    if _CONTROL.search(data[:4096]):
        return b"\0" + _module_proto(data)
    if _MLIR.search(data):
        raise FileError(_mlir("StableHLO or another MLIR text"))
    if re.match(rb"\s*\{ ?lambda\b", data):
        raise FileError(_mlir("a jaxpr"))
    if not data.strip():
        raise FileError(f"empty; {HLO_ADVICE}")
    raise FileError(f"not HLO: it does not begin with `HloModule`; {HLO_ADVICE}")


def _mlir(what: str) -> str:
    return (
        f"this is {what}, the program before the TPU compiler partitioned, fused and scheduled it; "
        "compile it first (`tpusim.compiler.compile`), or " + HLO_ADVICE
    )


def _module_proto(data: bytes) -> bytes:
    """Return the HloModuleProto in an HloModuleProto, HloProto or HloSnapshot.

    Each of these holds the previous one as its field 1, where a module has its name.
    """
    for _ in range(2):
        inner = _first_field(data)
        if not inner.startswith(b"\n"):
            break
        data = inner
    return data


def assigned_devices(request: bytes) -> tuple[int, int]:
    """Return the replicas and the partitions of a parser's request; (1, 1) if it is text.

    A proto has them in its device assignment (field 15 of HloModuleProto), which jaxlib leaves out
    of its text.
    """
    if not request.startswith(b"\0"):
        return 1, 1
    assigned = _lasts(request[1:]).get(15, b"")
    counts = _lasts(assigned) if isinstance(assigned, bytes) else {}
    replicas, partitions = (counts.get(field, 1) for field in (1, 2))
    if isinstance(replicas, int) and isinstance(partitions, int):
        return (replicas, partitions) if 0 < replicas * partitions <= MOST_DEVICES else (1, 1)
    return 1, 1


def _lasts(data: bytes) -> dict[int, int | bytes]:
    """Return the last value of each field of a message, as far as it can be read."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            found[key >> 3], at = _varint(data, at)
        elif key & 7 == 2:
            size, at = _varint(data, at)
            found[key >> 3], at = data[at : at + size], at + size
        else:
            at += {1: 8, 5: 4}.get(key & 7, len(data))
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that is written from a place on, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            break
    return value, at


def _first_field(data: bytes) -> bytes:
    """Return the content of field 1, if the message begins with it and it has a length."""
    if data[:1] != b"\n":
        return b""
    size, at = _varint(data, 1)
    return data[at : at + size]


_MARK = "// tpusim: "


def format_header(facts: Mapping[str, Any]) -> str:
    """Return the header line of `facts`, including its newline; HLO text follows it."""
    return f"{_MARK}{json.dumps(facts)}\n"


def split_header(data: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """Return the facts of tpusim's header line, or None, and the rest.

    The rest keeps the newline of the header, so that line numbers are those of the file. Raises
    FileError for a broken header.
    """
    mark = _MARK.encode()
    if not data.startswith(mark):
        return None, data
    end = data.find(b"\n") if b"\n" in data else len(data)
    try:
        facts = json.loads(data[len(mark) : end])
        wrong = "" if isinstance(facts, dict) else "holds no JSON object"
    except (ValueError, RecursionError) as error:
        wrong = f"is not JSON ({error})"
    if wrong:
        raise FileError(
            f"line 1 begins with {_MARK.strip()!r} and {wrong}; "
            "save the file again, or delete the line and give the slice yourself"
        )
    return facts, data[end:]
