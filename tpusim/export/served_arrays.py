"""The arrays of an exported step of a server: sequences of equal length, and their cache."""

from dataclasses import dataclass
from math import prod

from tpusim.base.errors import PlanError
from tpusim.pipeline.serving_step import StepShape
from tpusim.plan import ServingPlan
from tpusim.server.step_load import StepLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedArrays:
    """A step that decodes, or one of prompts, as arrays of equal sequences.

    tokens: of each sequence in the step: one that decodes, or a chunk of a prompt.
    sequences: of each rank.
    pages: of each sequence in the cache.
    page_size: tokens of a page.
    paged: attention is a kernel over pages; otherwise the cache has one array for each sequence.
    """

    tokens: int
    sequences: int
    pages: int
    page_size: int
    paged: bool

    @classmethod
    def of(cls, plan: ServingPlan, load: StepLoad) -> "ServedArrays":
        """Return the arrays of a load, whose sequences are as long as their mean.

        Of prompts, a chunk of c tokens after p cached ones has `p + c` keys and `c p + c (c + 1) /
        2` pairs, so the load of n of them gives c, n and p.

        Raise PlanError for a load of both kinds, or of none.
        """
        if load.decodes and load.prefills:
            raise PlanError(
                f"the load is {load}; an exported step decodes or computes prompts, so leave one "
                "of them out"
            )
        if not load.decodes and not load.prefills:
            raise PlanError("the load has no token; write decodes or prefills above 0")
        if load.decodes:
            sequences, tokens = load.decodes, 1
            keys = -(-load.context // sequences)
        else:
            chunk = (2 * load.prefill_pairs - load.prefills) / max(
                1, 2 * load.prefill_keys - load.prefills
            )
            sequences = max(1, round(load.prefills / max(chunk, 1.0)))
            tokens = -(-load.prefills // sequences)
            keys = -(-load.prefill_keys // sequences)
        return cls(
            tokens=tokens,
            sequences=_even(sequences, plan),
            pages=max(1, -(-max(keys, tokens) // plan.page_size)),
            page_size=plan.page_size,
            paged=plan.kernel == "paged",
        )

    @property
    def keys(self) -> int:
        """Tokens of a sequence for which the cache has room."""
        return self.pages * self.page_size

    def load(self, ranks: int) -> StepLoad:
        """Return the load of arrays whose caches are full: whole pages of each sequence."""
        count, chunk = self.sequences * ranks, self.tokens
        if chunk == 1:
            return StepLoad(count, count * self.keys)
        pairs = count * chunk * (2 * self.keys - chunk + 1) // 2
        return StepLoad(0, 0, count * chunk, count * self.keys, pairs)

    @property
    def shape(self) -> StepShape:
        """The arrays of the step in the graph."""
        return StepShape(
            tokens=self.sequences * self.tokens,
            rows=self.sequences,
            pages=self.sequences * self.pages,
        )


def _even(sequences: int, plan: ServingPlan) -> int:
    """Return the sequences of a rank, a multiple of what its kernels are divided by."""
    own = -(-sequences // plan.ranks)
    parts = prod(plan.mesh[axis] for axis in plan.kernel_axes(own))
    return -(-own // parts) * parts
