"""Two thousand broken HLO files: each is read, or is one sentence; none crashes or hangs."""

import gzip
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from extent import thorough
from hlo import DATA, REAL

from tpusim.base.errors import TpusimError
from tpusim.compiler.hlo.hlo_files import split_header
from tpusim.compiler.hlo.parser_process import HloParser
from tpusim.compiler.hlo.read import read_module
from tpusim.compiler.lower.device_ids import DeviceIds
from tpusim.compiler.lower.lower_module import lower_module
from tpusim.hardware import Slice
from tpusim.results.replay_result import ProgramOrigin
from tpusim.simulation.program_run import replay_program

pytest.importorskip("jaxlib.xla_client")

SEED = 7
NUMBER = re.compile(rb"\d+")
WORDS = (
    b"f32 bf16 s32 pred token opaque parameter fusion while tuple custom-call all-gather ROOT {} "
    b"() [] {{0,1},{2,3}} [2,2]<=[4] -1 0 1 64 9999999999999999999 T(8,128) S(1)"
).split()
NAME = re.compile(rb"[\w\-.]+")


def flipped(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def without_a_line(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[draw.randrange(len(lines))]
    return b"".join(lines)


def with_a_line_elsewhere(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines)), draw.choice(lines))
    return b"".join(lines)


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def _changed(data: bytes, draw: random.Random, pattern: re.Pattern[bytes], words: Any) -> bytes:
    found = pattern.search(data, draw.randrange(len(data)))
    if found is None:
        return data
    new = words(draw) if callable(words) else draw.choice(words)
    return data[: found.start()] + new + data[found.end() :]


def another_number(data: bytes, draw: random.Random) -> bytes:
    def any_number(draw: random.Random) -> bytes:
        return str(draw.choice((0, 1, 2, 3, 7, 128, 2**31, 2**62, draw.randrange(4096)))).encode()

    return _changed(data, draw, NUMBER, any_number)


def another_word(data: bytes, draw: random.Random) -> bytes:
    return _changed(data, draw, NAME, WORDS)


def a_word_of_elsewhere(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return _changed(data, draw, NAME, NAME.findall(data, place, place + 99)[:1] or WORDS)


def another_size_everywhere(data: bytes, draw: random.Random) -> bytes:
    """A dimension, wherever such a size stands in a shape: so the shapes still fit."""
    old = draw.choice(re.findall(rb"[\[,](\d+)(?=[,\]])", data) or [b"0"])
    new = draw.choice((b"0", b"1", b"3", b"100", str(2 * int(old[:9])).encode(), b"1" + b"0" * 12))
    return re.sub(rb"(?<=[\[,])" + old + rb"(?=[,\]])", new, data)


SPOKEN = re.compile(
    rb"(?:constant\(|direction=|replica_groups=|source_target_pairs=\{*|dim_labels=|window=\{|"
    rb"dimensions=\{|index=|channel_id=|num_partitions=|stack_frame_id=|custom_call_target=.|kind=|"
    rb"feature_group_count=|may-alias\), \{|contracting_dims=\{|indices.:\[.|emitter.:.|n.:.)"
    rb"([\w.]*)"
)
SAID = (
    *b"LT GT NE EQ kLoop kOutput kCustom 0 1 2 5 7 64 -1 b01f_01io->b01f bf_io->bf x".split(),
    b"",
)


def another_attribute(data: bytes, draw: random.Random) -> bytes:
    """What an instruction says of itself, where the parser minds little what it is."""
    found = draw.choice(list(SPOKEN.finditer(data)) or [None])
    if found is None:
        return data
    return data[: found.start(1)] + draw.choice(SAID) + data[found.end(1) :]


def another_opcode_everywhere(data: bytes, draw: random.Random) -> bytes:
    found = draw.choice(re.findall(rb" ([a-z][a-z\-]+)\(%", data) or [b"add"])
    other = draw.choice(re.findall(rb" ([a-z][a-z\-]+)\(%", data) or [b"add"])
    return data.replace(b" " + found + b"(%", b" " + other + b"(%", draw.choice((1, 1, -1)))


COARSE = (
    *(flipped, without_a_line, with_a_line_elsewhere, cut),
    *(another_number, another_word, a_word_of_elsewhere),
)
FINE = (another_size_everywhere, another_attribute, another_opcode_everywhere)


def bodies(data: bytes) -> bytes:
    """The HLO without its tables of files and frames, and without the backend's notes."""
    head, _, rest = data.partition(b"\n")
    rest = rest[re.search(rb"^%", rest, re.MULTILINE).start() :]  # type: ignore[union-attr]
    return head + b"\n\n" + re.sub(rb", backend_config=\{.*", b"", rest)


SOURCES = ((REAL, "v5e:2x2"), (DATA / "decode_7x_2x2x1.hlo.gz", "7x:2x2x1"))
"""A training step, and what runs on SparseCores."""

Used = Callable[[bytes, Slice, HloParser], object]


def outcomes(used: Used, files: int, seed: int) -> Counter[str]:
    """How often `used` took a changed file, and refused one; all else that it raises escapes."""
    sources = [
        (kind, Slice(*slice_.split(":")))
        for path, slice_ in SOURCES
        for plain in [split_header(gzip.decompress(path.read_bytes()))[1].lstrip()]
        for kind in (bodies(plain), bodies(plain), bodies(plain), plain)
    ]
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    with HloParser() as parser:
        for _ in range(files):
            data, pod = draw.choice(sources)
            kinds = draw.choice((COARSE, FINE))
            for _ in range(draw.choice((1, 1, 2, 5))):
                data = draw.choice(kinds)(data, draw) or b"HloModule"
            try:
                used(data, pod, parser)
            except TpusimError as error:
                found["refused, of lines: " + str(str(error).count("\n") + 1)] += 1
            else:
                found["taken"] += 1
    return found


def replayed_text(data: bytes, pod: Slice, parser: HloParser) -> str:
    """All that `tpusim replay` does with a file, but for starting a parser of its own."""
    module = read_module(data, "broken.hlo", parser)
    laid = lower_module(module, pod, DeviceIds.in_order(pod))
    origin = ProgramOrigin(name=module.name)
    return str(
        replay_program(laid.program, pod, laid.placement, origin=origin, unknown=laid.unknown)
    )


@pytest.mark.parametrize("files", [100, thorough(2000)])
def test_no_broken_file_crashes_hangs_or_escapes(files: int) -> None:
    found = outcomes(replayed_text, files, SEED)
    assert set(found) == {"taken", "refused, of lines: 1"}
    assert min(found.values()) > files / 10
