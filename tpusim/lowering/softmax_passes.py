"""The passes of a softmax through HBM, and of a cross entropy: which operations have their work.

A softmax of scores is never one pass. The matmul that makes the scores finds their maxima in its
epilogue, or a pass of its own does where the matmul is a ring, whose result is complete after its
last chunk; another pass sums the exponentials; and what reads the probabilities computes them, be
it a pass that writes them or each matmul that multiplies them (`fused_results.py`). A checkpoint
has all but the last again. Of the gradient, the matmul that makes that of the probabilities sums
its products with them, and its own readers compute the rest again. A cross entropy is the same
without probabilities: the gradient of the logits is computed in both matmuls that read it, or in
one pass where a ring does.

In 100 compiled plans on v4 to 7x (libtpu 0.0.42.1) the operations that XLA counts for each score or
logit are those below in all of them, within half an operation, but for one of 16 with scores, whose
scores in f32 need fewer.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Einsum, Pointwise, is_sequence, plain_dim
from tpusim.lowering.body_entries import CollectiveMatmul, Entry
from tpusim.lowering.op_work import Buffers, elements, operand_bytes, work_of
from tpusim.partition import ComputeNode, Sizes
from tpusim.program import LANES, MatmulWork, Number, VectorWork, Work

LOGIT_MAXIMUM, SCORE_MAXIMUM = 1.0, 5.5
"""Vector operations per element of the maximum; of scores with their scale and mask."""

LOGIT_SUMS_AGAIN = 9.0
"""Operations per logit of the sum of exponentials that a checkpoint recomputes, without labels."""

SCORE_SUMS = 10.0
PROBABILITY = 11.0
PRODUCTS = 13.0
SCORE_GRADIENT = 18.0
"""Operations per score of the sum of exponentials, of the probability, of the sum of its products
with its gradient, and of the gradient of the score."""

WIDE_EXPONENTIAL = {"v6e": 4.0}
"""Additional operations per exponential of a score, by generation."""

_NOTHING = VectorWork(0.0, 0.0, 0.0)


class Added(NamedTuple):
    """Additional work of a matmul: vector operations, and bytes that it reads."""

    flops: Number = 0.0
    read_bytes: Number = 0.0


@dataclass(frozen=True, slots=True)
class SoftmaxPasses:
    """The work of the softmaxes of a body.

    own: of the passes that are left, by the name of the entry.
    added: to matmuls, by theirs.
    """

    own: dict[str, VectorWork] = field(default_factory=dict)
    added: dict[str, Added] = field(default_factory=lambda: defaultdict(Added))

    def work(self, name: str, work: Work) -> Work:
        """Return the work of an entry with what softmaxes add to it, or leave of it."""
        if name in self.own:
            return self.own[name]
        more = self.added.get(name)
        if more is None or not isinstance(work, MatmulWork):
            return work
        return replace(
            work,
            epilogue_flops=work.epilogue_flops + more.flops,
            read_bytes=work.read_bytes + more.read_bytes,
        )


def is_softmax(entry: object) -> TypeGuard[ComputeNode]:
    """Return True for a softmax of scores or a cross entropy of logits, or the gradient of one.

    Not for a copy of either, and not where labels are picked by index, which has passes of its own
    (`pick-logits`).
    """
    if not _is_normalised(entry):
        return False
    assert isinstance(entry.op, Pointwise)
    return not (entry.epilogue or entry.generated or entry.op.picks)


def _is_normalised(entry: object) -> TypeGuard[ComputeNode]:
    if not (isinstance(entry, ComputeNode) and isinstance(entry.op, Pointwise)):
        return False
    alike = entry.op.over == entry.op.main.dims[-1:]
    return bool(entry.op.flops) and alike and (_is_of_logits(entry.op) or _is_of_scores(entry.op))


def _is_of_logits(op: Pointwise) -> bool:
    return plain_dim(op.over[0]) == "vocab" and len(op.main.dims) > 1


def _is_of_scores(op: Pointwise) -> bool:
    return is_sequence(op.over[0]) and len(op.main.dims) > len(("head", "query", "key"))


def least_work(node: ComputeNode, work: VectorWork, sizes: Sizes) -> VectorWork:
    """Return the least work that a softmax may leave to a pass of its own. work: that of all."""
    assert isinstance(node.op, Pointwise)
    if node.phase is Phase.BACKWARD:
        return _NOTHING
    if not _is_of_scores(node.op):
        return replace(work, compiled=True)
    count = elements(node.op.main, dict(node.split), sizes)
    return replace(work, write_bytes=0.0, flops=SCORE_SUMS * count, compiled=True)


def softmax_passes(
    entries: Sequence[Entry],
    inside: Collection[str],
    sizes: Sizes,
    buffers: Buffers,
    generation: str,
) -> SoftmaxPasses:
    """Return the work of a body's softmaxes on chips of a generation.

    inside: results that their readers compute.
    """
    found = _Passes(entries, inside, sizes, buffers, WIDE_EXPONENTIAL.get(generation, 0.0))
    for entry in entries:
        if is_softmax(entry):
            found.take(entry)
    return found.passes


class _Passes:
    """Builder of the passes of one body."""

    def __init__(
        self,
        entries: Sequence[Entry],
        inside: Collection[str],
        sizes: Sizes,
        buffers: Buffers,
        exponential: float,
    ) -> None:
        self.passes = SoftmaxPasses()
        self.inside, self.sizes, self.buffers = inside, sizes, buffers
        self.exponential = exponential
        self.makers = {key: entry for entry in entries for key in entry.writes}
        self.readers: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            for key in dict.fromkeys(entry.reads):
                self.readers[key].append(entry)
        self.forward = {
            key
            for entry in entries
            if _is_normalised(entry) and entry.phase is not Phase.BACKWARD
            for key in entry.reads
        }

    def take(self, entry: ComputeNode) -> None:
        """Take a softmax apart."""
        assert isinstance(entry.op, Pointwise)
        backward = entry.phase is Phase.BACKWARD
        if _is_of_logits(entry.op):
            if backward:
                self._logit_gradient(entry, entry.op)
            else:
                self._loss(entry)
        elif self._has_wide_heads(entry) and not (
            entry.op.writes_residuals or (entry.op.residuals and backward)
        ):
            (self._score_gradient if backward else self._scores)(entry, entry.op)

    def _loss(self, entry: ComputeNode) -> None:
        count, nbytes, key = self._main(entry)
        alone = self._maximum(key, LOGIT_MAXIMUM * count)
        more = nbytes if bool(alone) else 0.0
        self.passes.own[entry.name] = _more(self._whole(entry), alone, more)

    def _logit_gradient(self, entry: ComputeNode, op: Pointwise) -> None:
        count, nbytes, key = self._main(entry)
        whole, left = self._whole(entry), _NOTHING
        if key not in self.forward and op.over[0] == "vocab":
            again = LOGIT_SUMS_AGAIN * count + self._maximum(key, LOGIT_MAXIMUM * count)
            left = VectorWork(nbytes, 0.0, again, compiled=True)
        if entry.writes[0] in self.inside:
            self._in_readers(entry.writes[0], whole.flops, 0.0)
        else:
            left = _more(whole, left.flops, left.read_bytes)
        self.passes.own[entry.name] = left

    def _scores(self, entry: ComputeNode, op: Pointwise) -> None:
        count, nbytes, key = self._main(entry)
        sums = (SCORE_SUMS + self.exponential) * count
        sums += self._maximum(key, SCORE_MAXIMUM * count)
        probability = (PROBABILITY + self.exponential) * count
        made = operand_bytes(op.outputs[0], dict(entry.split), self.sizes)
        if entry.writes[0] in self.inside:
            left = VectorWork(nbytes, 0.0, sums, compiled=True)
            self._in_readers(entry.writes[0], probability, nbytes - made)
        else:
            left = VectorWork(2 * nbytes, made, sums + probability, compiled=True)
        self.passes.own[entry.name] = left

    def _score_gradient(self, entry: ComputeNode, op: Pointwise) -> None:
        split = dict(entry.split)
        kept = op.inputs[-1]
        count = elements(kept, split, self.sizes)
        read = sum(operand_bytes(t, split, self.sizes) for t in (op.inputs[0], kept))
        made = operand_bytes(op.outputs[0], split, self.sizes)
        maker = self.makers.get(entry.reads[0])
        if isinstance(maker, ComputeNode) and isinstance(maker.op, Einsum):
            scores = operand_bytes(kept, split, self.sizes)
            self._add(maker.name, (PRODUCTS + self.exponential) * count, scores)
        gradient = (SCORE_GRADIENT + self.exponential) * count
        if entry.writes[0] in self.inside:
            self.passes.own[entry.name] = _NOTHING
            self._in_readers(entry.writes[0], gradient, read - made)
        else:
            self.passes.own[entry.name] = VectorWork(read, made, gradient, compiled=True)

    def _has_wide_heads(self, entry: ComputeNode) -> bool:
        """Return True for scores, or gradients of probabilities, of heads that fill the lanes.

        Programs are alike with heads of 64 (six of six measured runs whose programs were compiled,
        within 6 %), but their measured steps are 7 to 55 % shorter on v5p and v5e than with the
        costs of these passes, which are left out of plans there: three passes over the scores.
        """
        maker = self.makers.get(entry.reads[0])
        if not (isinstance(maker, ComputeNode) and isinstance(maker.op, Einsum)):
            return False
        summed = [dim for dim in maker.op.lhs.dims if dim not in maker.op.output.dims]
        return bool(self.sizes.product(tuple(summed), {}) >= LANES)

    def _main(self, entry: ComputeNode) -> tuple[Number, Number, str]:
        """Return the elements of the logits or scores, their bytes, and their buffer."""
        op, split = entry.op, dict(entry.split)
        assert isinstance(op, Pointwise)
        given = zip(op.inputs, entry.reads, strict=False)
        tensor, key = next((t, key) for t, key in given if t.dims == op.main.dims)
        return elements(tensor, split, self.sizes), operand_bytes(tensor, split, self.sizes), key

    def _whole(self, entry: ComputeNode) -> VectorWork:
        """Return the work of a pass that writes its result, as programs count it."""
        work = work_of(entry, self.sizes, self.buffers)
        assert isinstance(work, VectorWork)
        return replace(work, compiled=True)

    def _maximum(self, key: str, flops: Number) -> Number:
        """Let the matmul that makes a buffer find its maxima; return `flops` if it is a ring."""
        maker = self.makers.get(key)
        if isinstance(maker, CollectiveMatmul) and maker.gathers:
            return flops
        if isinstance(maker, ComputeNode) and isinstance(maker.op, Einsum):
            self._add(maker.name, flops, 0.0)
        return 0.0

    def _in_readers(self, key: str, flops: Number, read_bytes: Number) -> None:
        for reader in self.readers[key]:
            self._add(reader.name, flops, read_bytes)

    def _add(self, name: str, flops: Number, read_bytes: Number) -> None:
        before = self.passes.added[name]
        self.passes.added[name] = Added(before.flops + flops, before.read_bytes + read_bytes)


def _more(work: VectorWork, flops: Number, read_bytes: Number) -> VectorWork:
    return replace(work, flops=work.flops + flops, read_bytes=work.read_bytes + read_bytes)
