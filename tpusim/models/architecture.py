"""Architectures: the interface that a model must provide, and its base class.

A model of one's own is a frozen dataclass with a `forward` that writes its operations:

    @dataclass(frozen=True, kw_only=True)
    class Mine(Architecture):
        name: str = "mine"
        layers: int = 12

        def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
            ...
"""

from abc import ABCMeta, abstractmethod
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache, lru_cache
from inspect import signature
from math import prod
from typing import Any, ClassVar, Self

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import ModelError, PlanError, nearest
from tpusim.base.html_text import html_table
from tpusim.base.shown_value import cut
from tpusim.graph import (
    COMPUTE,
    Graph,
    GraphWriter,
    Scan,
    Tensor,
    layer_count,
    layer_row,
    plain_dim,
)
from tpusim.models.checks import check_types
from tpusim.models.pieces import EVEN, WHOLE_LOSS, ExpertRouting, LossForm
from tpusim.models.published_models import published_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChoices:
    """What a plan decides of the forward pass.

    logits_dtype: dtype in which logits are written to HBM.
    routing: of tokens to experts; by a sort, without a capacity, where a plan does not say.
    loss: how the loss of a language model is computed.
    cached: keys and values are in a cache, as in the step of a server: a window counts however few
        tokens there are, and latent attention keeps the latent alone.
    """

    logits_dtype: str = COMPUTE
    routing: ExpertRouting = EVEN
    loss: LossForm = WHOLE_LOSS
    cached: bool = False

    def __post_init__(self) -> None:
        check_types(self, "GraphChoices.")


DEFAULT_CHOICES = GraphChoices()

LONGEST_CELL = 200
"""Characters of a value in a notebook."""


class _ArchitectureClass(ABCMeta):
    """The metaclass of architectures: a call returns a model that can be used, or raises."""

    def __call__(cls, *args: Any, **keys: Any) -> Any:
        """Return a model. Raise ArgumentError for keys that do not fit, ModelError for a class."""
        _prepare(cls)
        made = super().__call__(*args, **keys)
        _check_usable(made)
        return made


@cache
def _prepare(kind: Any) -> None:
    """Make the constructor of a class say what does not fit. Raise ModelError for no such class."""
    frozen = "write @dataclass(frozen=True, kw_only=True) above it"
    known: bool = is_dataclass(kind)
    if not known:
        raise ModelError(f"{kind.__name__} is no dataclass; {frozen}")
    if kind.__hash__ is None:
        raise ModelError(f"{kind.__name__} can change after it is made; {frozen}")
    try:
        signature(kind.forward).bind("self", "w", "choices")
    except TypeError as error:
        raise ModelError(
            f"{kind.__name__}.forward takes other arguments than a writer and choices; write "
            "def forward(self, w, choices)"
        ) from error
    checked_call(kind)


def _check_usable(model: Any) -> None:
    """Raise ModelError for a model without a name, that changes, or whose forward is no such."""
    kind = type(model).__name__
    name = getattr(model, "name", None)
    if not isinstance(name, str):
        raise ModelError(
            f"{kind} has {'no name' if name is None else f'the name {cut(repr(name))}'}, by which "
            f'results call it; write the field name: str = "{kind.lower()}"'
        )
    for field in fields(model):
        if unhashable := _unhashable(getattr(model, field.name)):
            raise ModelError(
                f"{name}: {field.name} is a {unhashable}, which can change; write a tuple"
            )


def _unhashable(value: Any) -> str:
    """Return the class of a value that has no hash, such as a list; empty if it has one."""
    try:
        hash(value)
    except TypeError:
        return type(value).__name__
    return ""


class Architecture(metaclass=_ArchitectureClass):
    """A model: a hashable value that writes its forward pass as a graph."""

    __slots__ = ()
    reads_text: ClassVar[bool] = True
    """True for models whose examples are sequences of tokens, of a length that the plan gives."""

    measured: ClassVar[bool] = False
    """True for the kind of models whose measured runs make the ranges: decoders and encoders."""

    PUBLISHED: ClassVar[str] = ""
    """The file of `models/published` that has the published ones; empty for none."""

    name: str

    @abstractmethod
    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each example or token.

        w: a writer that has the dimension `batch`, and `seq` for models that read text.
        choices: what the plan decides.
        """

    def graph(
        self, *, batch: int, seq_len: int = 0, choices: GraphChoices = DEFAULT_CHOICES
    ) -> Graph:
        """Return the forward pass and the loss, for `batch` examples.

        seq_len: tokens of an example, for models that read text.
        """
        w = GraphWriter(self.name, {"batch": batch})
        if self.reads_text:
            if seq_len < 1:
                raise PlanError(
                    f"plan.seq_len is missing, and {self.name} reads text; write the tokens of an "
                    "example, such as seq_len = 2048"
                )
            w.size(seq=seq_len)
        return w.graph(self.forward(w, choices))

    @classmethod
    def published(cls, name: str, /, **changes: Any) -> Self:
        """Return a published model, with some fields changed.

        Raise ModelError with the nearest names if there is none of this name.
        """
        found = published_keys(cls, name)
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for key in changes:
            if key not in known:
                raise ModelError(f"{cls.__name__} has no field {key!r}; {nearest(key, known)}")
        return cls(**{"name": name, **found, **changes})

    @property
    def served(self) -> Self:
        """The model as a server runs it, without what only training has."""
        return self

    @property
    def parameter_count(self) -> int:
        """The number of weights."""
        return _smallest(self).parameter_count

    @property
    def active_parameter_count(self) -> int:
        """The number of weights active per token: all dense ones, and those of its experts."""
        graph = _smallest(self)
        sizes = graph.sizes
        own = (p for p in graph.parameters if p.tensor.dims[0] == "expert")
        idle = sum(p.copies * prod(sizes[dim] for dim in p.tensor.dims[1:]) for p in own)
        return graph.parameter_count - (idle * (sizes["expert"] - sizes["choice"]) if idle else 0)

    @property
    def has_layers(self) -> bool:
        """True if layers are a scan, inside of which `remat` recomputes."""
        return any(isinstance(op, Scan) and op.over_layers for op in _smallest(self).ops)

    @property
    def layer_count(self) -> int:
        """The number of layers, between which a pipeline can cut it."""
        return layer_count(_smallest(self))

    @property
    def joints(self) -> tuple[int, ...]:
        """The layers after the first that follow other operations, such as a decoder's first."""
        row = layer_row(_smallest(self))
        between = zip(row.bounds[1:-1], row.joints[1:-1], strict=True)
        return tuple(layer for layer, ops in between if ops)

    @property
    def expert_count(self) -> int:
        """The number of experts of a layer, of which a router chooses; 0 for a dense model."""
        sizes = _smallest(self).sizes
        return max((size for dim, size in sizes.items() if plain_dim(dim) == "expert"), default=0)

    @property
    def has_experts(self) -> bool:
        """True if a router chooses the weights of a token."""
        return self.expert_count > 0

    def _repr_html_(self) -> str:
        """Return its parameters and the fields that are not the default's, for a notebook."""
        rows = [("parameters", f"{self.parameter_count:,}")]
        if self.has_experts:
            rows.append(("active parameters", f"{self.active_parameter_count:,}"))
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            usual = field.default if field.default_factory is MISSING else field.default_factory()
            if field.name != "name" and value != usual:
                rows.append((field.name, cut(str(value), LONGEST_CELL)))
        return html_table(f"{type(self).__name__}: {self.name}", rows)

    def flat(self) -> dict[str, Any]:
        """Return its fields, as result files show them."""
        document: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return document


@lru_cache(maxsize=64)
def _smallest(model: Architecture) -> Graph:
    """Return the graph of one example; a sweep asks for that of one model again and again."""
    return model.graph(batch=1, seq_len=1)
