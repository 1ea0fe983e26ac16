"""Changes of HLO text, and of any text: bytes, lines, numbers, words, sizes and attributes."""

import random
import re
from typing import Any

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


def broken(data: bytes, draw: random.Random) -> bytes:
    """HLO text with one to five changes, all of them coarse or all of them fine."""
    kinds = draw.choice((COARSE, FINE))
    for _ in range(draw.choice((1, 1, 2, 5))):
        data = draw.choice(kinds)(data, draw) or b"HloModule"
    return data
