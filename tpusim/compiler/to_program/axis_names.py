"""Names of a program's axes: the user's own, or those of the parts of the torus that they are on.

The two are different name spaces: a user may call an axis `x`, and it may lie on y. Names are
given once all else is decided, each axis has one of its own, and nothing is read from a name but
`dcn_`, which the axes that run across slices have, and no others.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tpusim.compiler.to_program.mesh_axes import ProgramAxis
from tpusim.hardware import DCN_PREFIX, Span

_PREFIXES = re.compile(f"(?:{DCN_PREFIX})*")
_JOINING = re.compile(r"[,+\s]")
"""What joins the names of axes to that of a group."""


@dataclass(frozen=True, slots=True)
class AxisNames:
    """Names of the axes of a program, by number.

    users: names, on the torus, of the axes of the user's mesh, whether or not they are on parts.
    unnamed: those that are named for parts, as they are no axes of the user's.
    """

    names: Sequence[str]
    users: Mapping[str, str]
    unnamed: tuple[str, ...]

    @classmethod
    def of(
        cls, axes: Sequence[ProgramAxis], mesh: Iterable[str], lengths: Mapping[int, int]
    ) -> "AxisNames":
        """Return the names of the axes.

        mesh: names of the user's axes.
        lengths: of the dimensions of the torus and of the slices, by number.
        """
        bases = {user: _base(user) for user in mesh}
        users: dict[str, str] = {}
        for user in sorted(bases, key=lambda user: bases[user] != user):
            users[user] = unique_name(bases[user], users.values())
        names: list[str] = []
        for axis in axes:
            if axis.user is None:
                name = unique_name(_of_parts(axis, lengths), {*names, *users.values()})
            elif axis.across:
                name = unique_name(DCN_PREFIX + bases[axis.user], names)
            else:
                name = users[axis.user]
            names.append(name)
        unnamed = (name for name, axis in zip(names, axes, strict=True) if axis.user is None)
        return cls(names, users, tuple(unnamed))


def _base(user: str) -> str:
    """Return a user's name without what would join names, or say that it runs across slices."""
    return _JOINING.sub("_", _PREFIXES.sub("", user, count=1)) or "axis"


def unique_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with a number if it is taken."""
    found, count = name, 1
    while found in taken:
        count += 1
        found = f"{name} ({count})"
    return found


def _of_parts(axis: ProgramAxis, lengths: Mapping[int, int]) -> str:
    """Return the notation of the parts of an axis."""
    if not axis.across:
        return ",".join(part.written(lengths[part.dim]) for part in axis.parts)
    written = (Span(0, part.size, part.stride).written(lengths[part.dim]) for part in axis.parts)
    return DCN_PREFIX + ",".join("slices" + text.removeprefix("x") for text in written)
