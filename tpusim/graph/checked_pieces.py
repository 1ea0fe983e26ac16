"""Pieces of models and methods of the writer whose arguments are checked when they are called."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, TypeAlias, TypeVar

from tpusim.base.argument_types import misfit
from tpusim.base.checked_call import checked_call
from tpusim.base.errors import ModelError
from tpusim.graph.tensor import Tensor

Piece = TypeVar("Piece", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Dims:
    """The dimensions that a tensor must have, in words: `batch, sequence, embed`.

    `...` stands for any number of dimensions, none included.
    """

    words: str

    def unmet(self, tensor: Any) -> str:
        """Return what a tensor must be; empty if it has as many dimensions."""
        named = self.words.split(", ")
        least = sum(each != "..." for each in named)
        fits = len(tensor.dims) == least or ("..." in named and len(tensor.dims) > least)
        return "" if fits else f"a tensor [{self.words}]"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The least value of a number."""

    least: int

    def unmet(self, value: Any) -> str:
        """Return what a number must be; empty if it is."""
        return "" if value >= self.least else f"a whole number of at least {self.least}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """The words that a text may be."""

    words: tuple[str, ...]

    def unmet(self, value: Any) -> str:
        """Return what a text must be; empty if it is."""
        words = ", ".join(map(repr, self.words))
        return "" if value in self.words else f"one of {words}"


Count: TypeAlias = Annotated[int, AtLeast(1)]
Natural: TypeAlias = Annotated[int, AtLeast(0)]
Vectors: TypeAlias = Annotated[Tensor, Dims("..., width")]
Features: TypeAlias = Annotated[Tensor, Dims("batch, width")]
Table: TypeAlias = Annotated[Tensor, Dims("rows, width")]
Ids: TypeAlias = Annotated[Tensor, Dims("batch, sequence")]
Tokens: TypeAlias = Annotated[Tensor, Dims("batch, sequence, width")]
Joinable: TypeAlias = Annotated[Tensor, Dims("batch, sequence, ...")]
Heads: TypeAlias = Annotated[Tensor, Dims("batch, sequence, heads, width")]
Positions: TypeAlias = Annotated[Tensor, Dims("batch, positions, ..., channels")]


def checked_piece(piece: Piece) -> Piece:
    """Return a piece, or a method of the writer, that raises ModelError for arguments of no use.

    Those are values of another type than the annotation's, tensors with another number of
    dimensions than it says, and tensors over dimensions that the writer does not know.
    """
    bound = checked_call(piece)

    @wraps(piece)
    def checked(w: Any, *args: Any, **keys: Any) -> Any:
        if fault := misfit(piece, (w, *args), keys) or _unknown(w, (*args, *keys.values())):
            name = getattr(w, "name", "")
            raise ModelError(f"{name}: {piece.__name__}: {fault}" if name else fault)
        return bound(w, *args, **keys)

    return checked  # type: ignore[return-value]


def _unknown(w: Any, given: Iterable[Any]) -> str:
    """Return which tensor has a dimension that the writer does not know; empty if none has."""
    for value in given:
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, Tensor):
                for dim in tensor.dims:
                    if dim not in w.sizes:
                        return (
                            f"{tensor.name} has the dimension {dim}, which this model has not "
                            f"declared; write w.size({dim}=...), or a tensor of this writer"
                        )
    return ""
