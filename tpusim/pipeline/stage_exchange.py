"""Exchanges between stages besides activations: gradients of tied weights, and norms.

Adam's gradients are clipped by the norm of all, which no stage knows by itself: sums go from the
last stage to the first, and their total back. An embedding that is also the head lives on the first
stage and on the last, which send each other its gradient.
"""

from collections.abc import Sequence

from tpusim.base.errors import PlanError
from tpusim.base.phase import Phase
from tpusim.partition import DTYPE_BYTES
from tpusim.pipeline.segments import LoweredPart
from tpusim.plan import STAGE_AXES
from tpusim.program import Alloc, Call, Compute, Number, Segment, Send, VectorWork

_SUM, _TOTAL = "sum of gradient norms", "total of gradient norms"
_NUMBER = DTYPE_BYTES["f32"]

SegmentCall = tuple[Segment, Call]
"""A call, and the segment that it runs."""


class StageExchange:
    """The exchanges of one pipeline after its last microbatch.

    parts: those of the model, in its order.
    inner: see `send`.
    accumulator: the dtype in which gradients are added up.
    """

    def __init__(
        self, parts: Sequence[LoweredPart], stages: int, inner: int, accumulator: str
    ) -> None:
        self.last = stages - 1
        self.inner = inner
        self.dtype = accumulator
        item = DTYPE_BYTES[accumulator]
        self.tied = _tied(parts, stages, item)
        self._added = {name: _addition(name, nbytes, item) for name, nbytes in self.tied.items()}
        self._sent = {
            name: Segment(
                name=f"send {name}", body=(_compute(f"send/{name}", VectorWork(0, 0, 0)),)
            )
            for name in self.tied
        }
        self._sum, self._total = (
            Segment(name=name, body=(_compute(name, VectorWork(2 * _NUMBER, _NUMBER, 1)),))
            for name in (_SUM, _TOTAL)
        )

    def calls(self, stage: int, reductions: Segment, norm: Segment) -> list[SegmentCall]:
        """Return the calls of a stage after its last microbatch.

        reductions, norm: of its own gradients.
        """
        own = [(reductions, _call(reductions))] if reductions.body else []
        tied = self._tied_calls(stage) if stage in (0, self.last) else []
        return [*own, *tied, *(self._norm(stage, norm) if norm.body else ())]

    def _tied_calls(self, stage: int) -> list[SegmentCall]:
        """Return the calls by which the first and the last stage add up their gradients."""
        to = self.last - stage
        sent, added = [], []
        for name, nbytes in self.tied.items():
            message = send(f"{name} of stage {stage}", stage, to, nbytes, self.dtype, self.inner)
            sent.append((self._sent[name], _call(self._sent[name], sends=(message,))))
            added.append((self._added[name], _call(self._added[name], f"{name} of stage {to}")))
        return [*sent, *added]

    def _norm(self, stage: int, norm: Segment) -> list[SegmentCall]:
        """Return the calls for its own norm, the sum with later stages, and the total."""
        down, up = f"norms from stage {stage}", f"norm of all to stage {stage + 1}"
        sent = (self._number(down, stage, stage - 1),) if stage else ()
        passed = (self._number(up, stage, stage + 1),) if stage < self.last else ()
        own = _call(norm, sends=sent if stage == self.last else ())
        found = [(norm, own)]
        if stage < self.last:
            sends = sent if stage else passed
            found.append((self._sum, _call(self._sum, f"norms from stage {stage + 1}", sends)))
        if stage:
            found.append((self._total, _call(self._total, f"norm of all to stage {stage}", passed)))
        return found

    def _number(self, message: str, stage: int, to: int) -> Send:
        return send(message, stage, to, _NUMBER, "f32", self.inner)


def send(message: str, stage: int, to: int, nbytes: Number, dtype: str, inner: int) -> Send:
    """Return a message from a stage to a neighbour; the first is a neighbour of the last.

    inner: the size of `stage`, the inner one of the two axes: neighbours are along it unless it
    ends between them.
    """
    crosses = inner == 1 or stage // inner != to // inner
    return Send(
        message=message, to=to, axes=(STAGE_AXES[0 if crosses else -1],), bytes=nbytes, dtype=dtype
    )


def _call(segment: Segment, awaited: str = "", sends: tuple[Send, ...] = ()) -> Call:
    return Call(
        name=segment.name,
        segment=segment.name,
        microbatch=0,
        awaits=(awaited,) if awaited else (),
        sends=sends,
    )


def _tied(parts: Sequence[LoweredPart], stages: int, item: float) -> dict[str, Number]:
    """Return the weights that the first and the last stage have in common, with their bytes.

    item: bytes of an element of an accumulator.

    Raise PlanError for a weight outside of the layers that other stages share.
    """
    held: dict[str, set[int]] = {}
    for number, part in enumerate(parts):
        for name, _ in part.partitioned.gradients:
            held.setdefault(name, set()).add(number % stages)
    both = {name for name, holders in held.items() if len(holders) > 1}
    for name in sorted(both):
        if held[name] != {0, stages - 1}:
            raise PlanError(
                f"{name} is a weight of stages {', '.join(map(str, sorted(held[name])))}, but only "
                "the first stage and the last send each other the gradient of a weight that they "
                "share; write schedule = 'circular', whose stages share all that is outside of the "
                "layers, or a model without this weight in common"
            )
    return {
        w.name: item * parts[0].sizes.elements(w.updated)
        for w in parts[0].partitioned.weights
        if w.name in both
    }


def _addition(weight: str, nbytes: Number, item: float) -> Segment:
    """Return the sum of both stages' gradients of a weight, with `item` bytes for an element."""
    received = Alloc(f"{weight}/received", nbytes, "stage buffers")
    add = Compute(
        name=f"add/{weight}",
        phase=Phase.BACKWARD,
        scope=weight,
        work=VectorWork(2 * nbytes, nbytes, nbytes / item),
        allocs=(received,),
        frees=(received.tensor,),
    )
    return Segment(name=f"sum of both gradients of {weight}", body=(add,))


def _compute(name: str, work: VectorWork) -> Compute:
    return Compute(name=name, phase=Phase.OPTIMIZER, scope="gradient_norm", work=work)
