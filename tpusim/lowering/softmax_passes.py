"""The passes of a cross entropy: which operations have the work of its softmax.

The matmul that makes the logits finds their maxima in its epilogue, or a pass of its own does where
the matmul is a ring, whose result is complete after its last chunk; another pass sums the
exponentials. The gradient of the logits is computed in both matmuls that read it, or in one pass
where a ring does (`fused_results.py`); a checkpoint around a tile of the loss has maxima and sums
again.

In 59 compiled plans on v4 to 7x (libtpu 0.0.42.1) the operations that XLA counts for each logit are
those below in all of them, within half an operation.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Einsum, Pointwise, plain_dim
from tpusim.lowering.body_entries import CollectiveMatmul, Entry
from tpusim.lowering.op_work import Buffers, elements, operand_bytes, work_of
from tpusim.partition import ComputeNode, Sizes
from tpusim.program import MatmulWork, Number, VectorWork, Work

MAXIMUM = 1.0
"""Vector operations per logit of the maximum."""

SUMS_AGAIN = 9.0
"""Of the sums of exponentials in a checkpoint's recomputation, without the labels."""


_NOTHING = VectorWork(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class SoftmaxPasses:
    """The work of the softmaxes of a body.

    own: of the passes that are left, by the name of the entry.
    added: vector operations in the epilogues of matmuls, by theirs.
    """

    own: dict[str, VectorWork] = field(default_factory=dict)
    added: dict[str, Number] = field(default_factory=lambda: defaultdict(float))

    def work(self, name: str, work: Work) -> Work:
        """Return the work of an entry with what softmaxes add to it, or leave of it."""
        if name in self.own:
            return self.own[name]
        more = self.added.get(name)
        if more is None or not isinstance(work, MatmulWork):
            return work
        return replace(work, epilogue_flops=work.epilogue_flops + more)


def is_softmax(entry: object) -> TypeGuard[ComputeNode]:
    """Return True for a cross entropy of logits, or its gradient."""
    if not (isinstance(entry, ComputeNode) and isinstance(entry.op, Pointwise)):
        return False
    over, dims = entry.op.over, entry.op.main.dims
    plain = not (entry.epilogue or entry.generated or entry.op.picks)
    return plain and over == dims[-1:] and len(dims) > 1 and plain_dim(over[0]) == "vocab"


def least_work(node: ComputeNode, work: VectorWork) -> VectorWork:
    """Return the least work that a softmax may leave to a pass of its own. work: that of all."""
    return _NOTHING if node.phase is Phase.BACKWARD else replace(work, compiled=True)


def softmax_passes(
    entries: Sequence[Entry], inside: Collection[str], sizes: Sizes, buffers: Buffers
) -> SoftmaxPasses:
    """Return the work of a body's softmaxes. inside: results that their readers compute."""
    found = _Passes(entries, inside, sizes, buffers)
    for entry in entries:
        if is_softmax(entry):
            found.take(entry)
    return found.passes


class _Passes:
    """Builder of the passes of one body."""

    def __init__(
        self, entries: Sequence[Entry], inside: Collection[str], sizes: Sizes, buffers: Buffers
    ) -> None:
        self.passes = SoftmaxPasses()
        self.inside, self.sizes, self.buffers = inside, sizes, buffers
        self.makers = {key: entry for entry in entries for key in entry.writes}
        self.readers: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            for key in dict.fromkeys(entry.reads):
                self.readers[key].append(entry)
        self.forward = {
            key
            for entry in entries
            if is_softmax(entry) and entry.phase is not Phase.BACKWARD
            for key in entry.reads
        }

    def take(self, entry: ComputeNode) -> None:
        """Take a softmax apart."""
        if entry.phase is Phase.BACKWARD:
            self._gradient(entry)
        else:
            self._loss(entry)

    def _loss(self, entry: ComputeNode) -> None:
        count, nbytes, key = self._main(entry)
        alone = self._maximum(key, MAXIMUM * count)
        more = nbytes if bool(alone) else 0.0
        self.passes.own[entry.name] = _more(self._whole(entry), alone, more)

    def _gradient(self, entry: ComputeNode) -> None:
        count, nbytes, key = self._main(entry)
        whole, left = self._whole(entry), _NOTHING
        assert isinstance(entry.op, Pointwise)
        if key not in self.forward and entry.op.over[0] == "vocab":
            again = SUMS_AGAIN * count + self._maximum(key, MAXIMUM * count)
            left = VectorWork(nbytes, 0.0, again, compiled=True)
        if entry.writes[0] in self.inside:
            self._in_readers(entry.writes[0], whole.flops)
        else:
            left = _more(whole, left.flops, left.read_bytes)
        self.passes.own[entry.name] = left

    def _main(self, entry: ComputeNode) -> tuple[Number, Number, str]:
        """Return the elements of the logits, their bytes, and their buffer."""
        op, split = entry.op, dict(entry.split)
        assert isinstance(op, Pointwise)
        given = zip(op.inputs, entry.reads, strict=False)
        tensor, key = next((t, key) for t, key in given if t.dims == op.main.dims)
        return elements(tensor, split, self.sizes), operand_bytes(tensor, split, self.sizes), key

    def _whole(self, entry: ComputeNode) -> VectorWork:
        """Return the work of a pass that writes its result, with operations as programs have them."""
        work = work_of(entry, self.sizes, self.buffers)
        assert isinstance(work, VectorWork)
        return replace(work, compiled=True)

    def _maximum(self, key: str, flops: Number) -> Number:
        """Let the matmul that makes a buffer find its maxima; return `flops` if it is a ring."""
        maker = self.makers.get(key)
        if isinstance(maker, CollectiveMatmul) and maker.gathers:
            return flops
        if isinstance(maker, ComputeNode) and isinstance(maker.op, Einsum):
            self.passes.added[maker.name] += flops
        return 0.0

    def _in_readers(self, key: str, flops: Number) -> None:
        for reader in self.readers[key]:
            self.passes.added[reader.name] += flops


def _more(work: VectorWork, flops: Number, read_bytes: Number) -> VectorWork:
    return replace(work, flops=work.flops + flops, read_bytes=work.read_bytes + read_bytes)
