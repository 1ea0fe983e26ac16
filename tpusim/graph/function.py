"""The function that an element-wise group computes."""

from dataclasses import dataclass
from typing import TypeAlias

Constant: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Function:
    """A function by name, with its constants.

    Costs need none: they follow from sizes. A program that is written from the graph does.

    name: name of the function, such as `rms_norm`; `tpusim/export/jax_library` has its JAX.
    constants: (name, value) of its constants; the value of a size is the name of its dimension.
    """

    name: str
    constants: tuple[tuple[str, Constant], ...] = ()

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.constants)
        return f"{self.name}({given})" if given else self.name


def function(name: str, **constants: Constant) -> Function:
    """Return a function with these constants."""
    return Function(name, tuple(constants.items()))


ADD, COPY, PARTS, REPEAT, ZEROS = (
    Function(name) for name in ("add", "copy", "parts", "repeat", "zeros")
)
"""The sum of all operands; each operand as it is; the slices of one operand along its third
dimension; one operand with a dimension repeated; zeros."""
