"""Pieces of models and methods of the writer whose arguments are checked when they are called."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from inspect import isfunction, signature
from typing import Annotated, Any, TypeAlias, TypeVar

from tpusim.base.argument_types import in_words, misfit
from tpusim.base.checked_call import checked_call
from tpusim.base.errors import ModelError, nearest
from tpusim.base.shown_value import cut
from tpusim.graph.tensor import Tensor

Owner = TypeVar("Owner")
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


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """Of a list: one value or more."""

    def unmet(self, value: Any) -> str:
        """Return what a list must be; empty if it is."""
        return "" if value else "a list of one or more"


Some: TypeAlias = Annotated[Sequence[Tensor], NotEmpty()]
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
    """Return a piece, or a method of the writer, that raises ModelError for arguments that misfit.

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


def checked_methods(kind: type[Owner]) -> type[Owner]:
    """Return a class whose public methods are checked pieces; what starts with `_` is not."""
    for name, method in vars(kind).items():
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, checked_piece(method))
    return kind


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


def check_fields(model: str, short: str, kind: Any, more: Mapping[str, Any]) -> None:
    """Raise ModelError for keys that are no fields of a class, and for values of other types.

    short: the name of what is written.
    """
    known = [each.name for each in fields(kind)] if more else []
    if unknown := [key for key in more if key not in known]:
        raise ModelError(
            f"{model}: {short}: a {kind.__name__} has no {unknown[0]!r}; "
            f"{nearest(unknown[0], known)}"
        )
    if fault := misfit(kind, (), more) if more else "":
        raise ModelError(f"{model}: {short}: {fault}")


def check_declared(model: str, sizes: Mapping[str, int], op: Any) -> None:
    """Raise ModelError for an operation over dimensions without a size."""
    for tensor in (*op.inputs, *op.outputs):
        for dim in tensor.dims:
            if dim not in sizes:
                raise ModelError(
                    f"{model}: {op.name} has {tensor} over {dim}, which is not declared; write "
                    f"size({dim}=...)"
                )


def check_made(model: str, short: str, operands: Sequence[Tensor], made: Tensor) -> None:
    """Raise ModelError for a product with a dimension that no operand has."""
    if lost := [dim for dim in made.dims if not any(dim in each.dims for each in operands)]:
        raise ModelError(
            f"{model}: the einsum {short} makes {made}, but neither "
            f"{' nor '.join(map(str, operands))} has {', '.join(lost)}; write dimensions that "
            "they have"
        )


def written(
    model: str, name: str, write: Callable[..., Any], args: Sequence[Any], count: int
) -> tuple[Tensor, ...]:
    """Return what a layer or a step returns: so many tensors. Raise ModelError otherwise."""
    try:
        signature(write).bind(*args)
    except TypeError as error:
        tensors = f"{len(args) - 1} argument{'s' if args[2:] else ''}"
        raise ModelError(
            f"{model}: what writes {name} does not take a writer and {tensors}: {error}; write "
            "a function that does"
        ) from error
    given = write(*args)
    several = given if isinstance(given, tuple | list) else (given,)
    if len(several) != count or not all(isinstance(each, Tensor) for each in several):
        wanted = "its result, a tensor" if count == 1 else f"{count} tensors"
        raise ModelError(
            f"{model}: what writes {name} returns {cut(in_words(given))}; return {wanted}"
        )
    return tuple(several)
