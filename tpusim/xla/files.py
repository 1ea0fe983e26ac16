"""The bytes of HLO that a user gives: from a file, gzipped or not; text or a serialised proto."""

import gzip
import io
import re
import zlib
from pathlib import Path
from typing import Any

from tpusim.errors import FileError, blame
from tpusim.textfile import read_bytes
from tpusim.units import format_bytes
from tpusim.xla.header import split_header
from tpusim.xla.text import INSTEAD

LARGEST = 200 * 2**20
"""Bytes of the largest HLO that is read: jaxlib takes about seven times as much."""

WHAT = "HLO that the TPU compiler made, as text or as a proto, gzipped or not"


def read_file(path: str | Path) -> tuple[dict[str, Any] | None, bytes]:
    """What tpusim's own header line says, or None, and the HLO of a file, unzipped.

    Raises FileError.
    """
    with blame(str(path)):
        return split_header(unzipped(read_bytes(Path(path), WHAT, "the path of " + WHAT, LARGEST)))


def unzipped(data: bytes) -> bytes:
    """The data, decompressed where it is gzip. Raises FileError for gzip that is broken."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        found = gzip.GzipFile(fileobj=io.BytesIO(data)).read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"broken gzip ({error}); compress or copy the file again") from error
    if len(found) > LARGEST:
        raise FileError(
            f"more than {format_bytes(LARGEST)} when unzipped, which is too large for HLO; "
            "give the HLO of one program, with the layers in a scan"
        )
    return found


_TEXT = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|//[^\n]*\n)*HloModule\b")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_MLIR = re.compile(rb"\b(?:stablehlo|mhlo|chlo|sdy|func|builtin|vhlo)\.\w|^module\b", re.MULTILINE)


def request(data: bytes) -> bytes:
    """What the parser is asked for this HLO. Raises FileError for what is no HLO at all."""
    if _TEXT.match(data):
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
        raise FileError(f"empty; {INSTEAD}")
    raise FileError(f"not HLO: it does not begin with `HloModule`; {INSTEAD}")


def _mlir(what: str) -> str:
    return (
        f"this is {what}, the program before the TPU compiler partitioned, fused and scheduled it; "
        "compile it first (`tpusim.xla.compile`), or " + INSTEAD
    )


def _module_proto(data: bytes) -> bytes:
    """The HloModuleProto of itself, of an HloProto or of an HloSnapshot.

    Each of those has the other as its field 1, where a module has its name.
    """
    for _ in range(2):
        inner = _first_field(data)
        if not inner.startswith(b"\n"):
            break
        data = inner
    return data


def _first_field(data: bytes) -> bytes:
    """The content of field 1, if the message begins with it and it has a length."""
    size, at = 0, 1
    for shift in range(0, 35, 7):
        if at >= len(data) or data[:1] != b"\n":
            return b""
        size |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            break
    return data[at : at + size]
