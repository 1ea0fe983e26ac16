"""Context parallelism of a plan: the exchange of keys and values of a sharded sequence."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tpusim.base.errors import PlanError
from tpusim.base.value_checks import check_flag, check_word

ContextExchange: TypeAlias = Literal["gather", "ring", "all-to-all"]
ContextExchanges: TypeAlias = ContextExchange | Mapping[str, ContextExchange]
GATHER, RING, ALL_TO_ALL = CONTEXT_EXCHANGES = get_args(ContextExchange)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The exchange of keys and values along the axes that shard the sequence.

    exchange: `gather`, `ring`, or `all-to-all` (heads sharded inside the kernel); or axis ->
        method. `gather` collects keys and values on each device; `ring` passes them round the axis
        beside the kernel. Several axes replace `context` in the default rules.
    balanced: each device has an early and a late part of a causal sequence. All devices then see as
        many keys; otherwise the last device has nearly twice the average, and all wait for it. The
        batch is reordered on input, at no cost. MaxText: `context_parallel_load_balance`.
    """

    exchange: ContextExchanges = "gather"
    balanced: bool = True

    def __post_init__(self) -> None:
        check_flag("plan.context.balanced", self.balanced)
        if isinstance(self.exchange, Mapping) and not self.exchange:
            methods = ", ".join(map(repr, CONTEXT_EXCHANGES))
            raise PlanError(
                f"plan.context.exchange is empty; write one of {methods}, or one of them for each "
                "axis, such as { context = 'ring' }"
            )
        for axis, method in self._methods():
            where = f"plan.context.exchange.{axis}" if axis else "plan.context.exchange"
            check_word(where, method, CONTEXT_EXCHANGES)

    def _methods(self) -> list[tuple[str, Any]]:
        """Return each axis that is named with its method; the method of all axes under no name."""
        given = self.exchange
        return list(given.items()) if isinstance(given, Mapping) else [("", given)]

    @property
    def exchanges_heads(self) -> bool:
        """True if some axis shards heads instead of tokens in kernels."""
        return any(method == ALL_TO_ALL for _, method in self._methods())

    def phrases(self) -> Iterator[str]:
        """Yield phrases of a plan's text: exchanges other than gathers, and an unbalanced split."""
        for axis, method in self._methods():
            if axis or method != GATHER:
                yield f"{method} over {axis or 'the context'}"
        if not self.balanced:
            yield "context not balanced"
