"""A collective as single messages on physical links: what the hop-by-hop mode steps through."""

from dataclasses import dataclass
from typing import NamedTuple


class Message(NamedTuple):
    """One message of a collective, from a chip to another.

    links: numbers of the directed links that it crosses, in order; a link is numbered by its place
    in an array [dimension, direction (0 is +, 1 is -), *coordinates of the chip that it leaves].
    share: bytes, by byte of the collective's tensor. after: indices of the messages that must have
    arrived before it leaves.
    """

    links: tuple[int, ...]
    share: float
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Moves:
    """What a collective moves on ICI, for the hop-by-hop mode.

    messages: all messages of all chips (see Message). nbytes: the tensor's bytes. launch_s: seconds
    before the first leaves. hop_s: seconds a hop.
    """

    messages: tuple[Message, ...]
    nbytes: float
    launch_s: float
    hop_s: float
