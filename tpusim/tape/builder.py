"""Builders: data with traced numbers in it, made again with other numbers.

What a recorded run returned is ordinary frozen data whose leaves are traced. Its builder makes the
same data with plain numbers: what holds no traced number is shared, the rest is constructed anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from tpusim.tape.traced import Traced

Builder = Callable[[Sequence[Any]], Any]
"""Makes the data from the values of its traced numbers."""


def builder_of(data: Any, numbers: list[Traced], shared: tuple[type, ...] = ()) -> Builder:
    """Return a function that makes `data` from the values of its traced numbers.

    numbers: takes the traced numbers of `data`; the function wants their values in this order.
    shared: types that are not made anew, although they hold traced numbers.

    An object that stands in several places is made once, so identities are kept.
    """
    return _BuilderWriter(numbers, shared).builder(data)


class _BuilderWriter:
    """Writes the source of a builder: a line for each object with traced numbers."""

    def __init__(self, numbers: list[Traced], shared: tuple[type, ...]) -> None:
        self._shared = (*_LEAVES, *shared)
        self._numbers = numbers
        self._positions: dict[int, int] = {each.node: at for at, each in enumerate(numbers)}
        self._scope: dict[str, Any] = {}
        self._written: dict[int, str | None] = {}
        self._kept: list[Any] = []
        self._lines: list[str] = []

    def builder(self, data: Any) -> Builder:
        result = self._expression(data)
        made = result if result is not None else self._constant(data)
        source = "\n    ".join(["def build(v):", *self._lines, f"return {made}"])
        exec(compile(source, "<builder>", "exec"), self._scope)
        build: Builder = self._scope["build"]
        return build

    def _expression(self, data: Any) -> str | None:
        """Return the expression that makes some data; None if it holds no traced number."""
        if type(data) is Traced:
            return self._number(data)
        if type(data) in self._shared:
            return None
        known = id(data)
        if known not in self._written:
            self._kept.append(data)
            made = self._compound(data)
            if made is not None:
                name = f"o{len(self._lines)}"
                self._lines.append(f"{name} = {made}")
                made = name
            self._written[known] = made
        return self._written[known]

    def _compound(self, data: Any) -> str | None:
        if isinstance(data, tuple | list):
            parts = self._parts(data)
            if parts is None:
                return None
            if isinstance(data, list):
                return f"[{', '.join(parts)}]"
            if type(data) is tuple:
                return f"({''.join(f'{part}, ' for part in parts)})"
            return f"{self._constant(type(data))}({', '.join(parts)})"
        if isinstance(data, dict):
            parts = self._parts(list(data.values()))
            if parts is None:
                return None
            pairs = zip(data, parts, strict=True)
            return f"{{{', '.join(f'{self._constant(key)}: {part}' for key, part in pairs)}}}"
        if is_dataclass(data) and not isinstance(data, type):
            taken = [field for field in fields(data) if field.init]
            parts = self._parts([getattr(data, field.name) for field in taken])
            if parts is None:
                return None
            given = (
                f"{field.name}={part}" if field.kw_only else part
                for field, part in zip(taken, parts, strict=True)
            )
            return f"{self._constant(type(data))}({', '.join(given)})"
        return None

    def _parts(self, values: Sequence[Any]) -> list[str] | None:
        """Return the expression of each value; None if none holds a traced number."""
        made = [self._expression(value) for value in values]
        if all(part is None for part in made):
            return None
        return [
            self._constant(value) if part is None else part
            for value, part in zip(values, made, strict=True)
        ]

    def _number(self, number: Traced) -> str:
        if number.node not in self._positions:
            self._positions[number.node] = len(self._numbers)
            self._numbers.append(number)
        return f"v[{self._positions[number.node]}]"

    def _constant(self, value: Any) -> str:
        if value is None or type(value) in (int, bool):
            return repr(value)
        name = f"c{len(self._scope)}"
        self._scope[name] = value
        return name


_LEAVES = (int, float, str, bool, type(None), bytes)
