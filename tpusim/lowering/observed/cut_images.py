"""Images of few examples: the compiler cuts them into the batch of their convolutions.

A tile of memory has eight sublanes, which the examples of an image fill. Where there are fewer, the
image is cut along its minor dimension into eight parts that lie in the batch, each with the halo
that its windows need (XLA's `SpaceToBatchConverter`). Parts have positions without data where what
is padded does not divide evenly, and a chain of convolutions and element-wise groups stays cut.
What needs whole images has them put together, and cut again after it: halos of other devices,
joined channels, pools, matmuls, and statistics of each example where parts have such positions.

Compiled U-Nets of volumes and of diffusion and ResNets with 1 to 16 examples a device on v2 to 7x
(libtpu 0.0.42.1): below eight on all but v2 and v3, and one alone on these.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Convolution, Pointwise, Pool
from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.decisions import Body
from tpusim.lowering.observed.example_sums import ExampleSums
from tpusim.lowering.observed.image_cuts import (
    examples_of,
    extents_of,
    is_cut,
    pooled_extents,
    rounded_up,
)
from tpusim.lowering.observed.image_groups import (
    arrangement_of,
    beside,
    by_example,
    made_by,
    operands,
)
from tpusim.lowering.observed.image_passes import ImagePasses
from tpusim.lowering.observed.kernel_images import kernel_gradient, shifted_images
from tpusim.partition import IMAGE_DIMS, Arrangement, ComputeNode, Purpose


def cut_images(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Return the entries with convolutions of few examples on parts of their images.

    Passes put images together and cut them, see `ImagePasses`. Gradients of kernels, and their
    reductions, come last.
    """
    convolutions = [entry for entry in entries if _is_convolution(entry)]
    cut = [node for node in convolutions if is_cut(node, body)]
    if not cut:
        return list(entries)
    passes = ImagePasses(body)
    cutting = _Cutting(passes, frozenset(_chained(cut, passes)), _pooled(entries))
    for entry in entries:
        cutting.add(entry)
    cutting.finish()
    return cutting.made


@dataclass(slots=True)
class _Cutting:
    """The entries so far.

    chained: images that convolutions read as they are cut.
    pooled: the stride of the pool that reads a result once it is normalised.
    written: operands that convolutions would compute as they read, and that are written.
    normalised: results of norms, each with what was normalised.
    by_example: of these, those with statistics of each example.
    late: gradients of scales and of kernels, and their reductions, which come last.
    """

    passes: ImagePasses
    chained: frozenset[str]
    pooled: Mapping[str, int]
    sums: ExampleSums = field(init=False)
    made: list[Entry] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    normalised: dict[str, str] = field(default_factory=dict)
    by_example: set[str] = field(default_factory=set)
    late: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sums = ExampleSums(self.passes)

    @property
    def spares(self) -> dict[str, int]:
        return self.passes.spares

    def add(self, entry: Entry) -> None:
        """Add an entry, with what it needs before and after it."""
        if any(not set(one.writes).isdisjoint(entry.reads) for one in self.late):
            if _reduces_gradients(entry):
                self.late.append(entry)
                return
            self.finish()
        if not isinstance(entry, ComputeNode):
            self.made.append(self._of_wholes(entry))
            return
        node = self._from_normalised(entry)
        if isinstance(node.op, Convolution):
            self._convolution(node, node.op)
        elif isinstance(node.op, Pool) and node.reads[0] in self.spares and not node.op.given:
            self._pool(node, node.op)
        elif self._is_alike(node):
            self._on_parts(node, next(self.spares[key] for key in self.passes.images(node)))
        else:
            self._on_wholes(node)

    def finish(self) -> None:
        """Add what comes last: sums for scales, gradients of kernels, and reductions."""
        late, self.late = self.late, []
        self.made += [
            one for one in late if isinstance(one, ComputeNode) and not _is_convolution(one)
        ]
        for one in late:
            if _is_convolution(one):
                self.made += kernel_gradient(one, self.passes)
        self.made += [one for one in late if not isinstance(one, ComputeNode)]

    def _from_normalised(self, node: ComputeNode) -> ComputeNode:
        """Return a node of the backward pass that computes a mask from what was normalised.

        It reads that in any case, so the result of an activation function need not be held in
        parts. What a group of the forward pass normalises is kept in mind.
        """
        op = node.op
        if node.phase is Phase.FORWARD:
            if isinstance(op, Pointwise) and op.after_sums:
                self.normalised |= dict.fromkeys(node.writes, node.reads[0])
                if by_example(op):
                    self.by_example.update(node.writes)
            return node
        masks = {key for key in self._beside(node) if self.normalised.get(key) in node.reads}
        masks &= self.spares.keys()
        if not masks:
            return node
        epilogue = tuple(
            replace(group, inputs=tuple(t for t in group.inputs if t.name not in masks))
            for group in node.epilogue
        )
        reads = tuple(key for key in node.reads if key not in masks)
        return replace(node, reads=reads, epilogue=epilogue, parts=())

    def _convolution(self, node: ComputeNode, op: Convolution) -> None:
        body, passes = self.passes.body, self.passes
        cut, size = is_cut(node, body), extents_of(node, body)
        if cut or self._reads_spread(node):
            node = self._with_operands(node)
        read = node.reads[0]
        if op.makes_kernel:
            cut = not op.transposed and (cut or (size.taps == 1 and read in self.spares))
            (self.late if cut else self.made).append(node if cut else self._of_wholes(node))
            return
        goes_on = read in self.spares and not passes.joins(node)
        if not (cut or (size.taps == 1 and goes_on and not size.finer)):
            self._on_wholes(node)
            return
        spare = size.spare_made(self.spares[read] if goes_on else None)
        if not goes_on:
            spare = rounded_up(spare, size, self.pooled.get(op.output.name, 1))
        before = size.spare_read(spare)
        operand = f"{read} masked"
        if not goes_on or self.spares[read] != before:
            operand = self._parts(read, node, before)
        elif operand not in self.spares or size.taps == 1:
            operand = read
        if cut and goes_on and self._is_shifted_early(node, read):
            self.made += shifted_images(read, node, before, passes)
        window = op.windows[-1]
        dims = (window.out_dim, window.in_dim) if op.given else (window.in_dim, window.out_dim)
        arrangement = Arrangement(tuple(zip(dims, (before, spare), strict=True)))
        node = replace(node, reads=(operand, *node.reads[1:]), arrangement=arrangement)
        others = {self.spares[key] for key in self._beside(node) if key in self.spares}
        if others - {spare}:
            self._apart(node, spare, max(others))
        else:
            self._on_parts(node, spare)

    def _pool(self, node: ComputeNode, op: Pool) -> None:
        """Add a pool: of parts as they are, unless rows of other devices are read too."""
        window, read = op.windows[-1], self.spares[node.reads[0]]
        if self.passes.joins(node):
            self._on_wholes(node)
            return
        spare = pooled_extents(node, self.passes.body).spare_made(read)
        cuts = ((window.in_dim, read), (window.out_dim, spare))
        self._on_parts(replace(node, arrangement=Arrangement(cuts)), spare)

    def _on_wholes(self, node: ComputeNode) -> None:
        """Add an operation on whole images; its epilogue is apart if it reads parts."""
        spares = [self.spares[key] for key in self._beside(node) if key in self.spares]
        if spares and isinstance(node.op, Convolution):
            self._apart(node, None, spares[0])
            return
        entry = self._of_wholes(node)
        assert isinstance(entry, ComputeNode)
        self.made.append(self._turned(entry) if isinstance(entry.op, Pointwise) else entry)

    def _turned(self, node: ComputeNode) -> ComputeNode:
        """Return a group on images that were put together, which leaves them turned."""
        passes = self.passes
        read = [passes.body.buffers[key].local.arrangement for key in passes.images(node)]
        if node.arrangement or not any(one is not None and one.lanes for one in read):
            return node
        images = [key for key in node.writes if passes.is_image(key)]
        for key in images:
            passes.write(key, key, passes.turned(key), passes.dtype(key))
        return replace(node, arrangement=passes.turned((*images, *passes.images(node))[0]))

    def _apart(self, node: ComputeNode, spare: int | None, beside_it: int) -> None:
        """Add a convolution, and its epilogue as a group of its own on other parts.

        spare: of its results; None if they are whole. beside_it: of what the epilogue reads.
        """
        passes, result = self.passes, node.op.outputs[0]
        for_it, read = made_by(node.generated, operands(node))
        for_epilogue, later = made_by(node.generated, beside(node))
        own = {*read, node.reads[0], *filter(passes.is_edge, node.reads)}
        raw, parts = f"{result.name} alone", f"{result.name} in parts"
        like = next(key for key in node.writes if passes.is_image(key))
        passes.write(raw, like, None, result.dtype)
        reads = tuple(key for key in node.reads if key in own)
        alone = replace(node, epilogue=(), parts=(), generated=for_it, reads=reads, writes=(raw,))
        self.made.append(self._of_wholes(alone))
        if spare is not None:
            passes.hold(raw, spare)
        self.made.append(passes.moved(raw, f"{raw} turned", passes.turned(raw), node.phase))
        self.made += passes.parts(f"{raw} turned", parts, beside_it, False, node.phase)
        first, *rest = node.epilogue
        group = ComputeNode(
            name=f"{node.name}/epilogue",
            op=first,
            split=node.split,
            reads=(parts, *(key for key in node.reads if key in later)),
            writes=node.writes,
            epilogue=tuple(rest),
            generated=for_epilogue,
        )
        self._on_parts(group, beside_it)

    def _on_parts(self, node: ComputeNode, spare: int) -> None:
        """Add an operation whose results are cut, and the sums that need whole images."""
        if node.arrangement is None:
            node = replace(node, arrangement=arrangement_of(node, spare))
        spread, node = self.sums.with_statistics(node, spare)
        self.made += spread
        group = self.sums.apart(node, spare)
        if group is not None:
            self.late += self.sums.of_scales(node, group, spare)
            node = self.sums.with_products(node, group, spare)
        for key in node.writes:
            if self.passes.is_image(key) and key not in self.spares:
                self.passes.hold(key, spare)
        self._masked(node, spare)
        if group is not None:
            self.made += self.sums.summed(node, group)

    def _masked(self, node: ComputeNode, spare: int) -> None:
        """Add an operation; what windows read of its results is written again without its spare.

        In the forward pass of several examples, by a pass of its own.
        """
        keys = [key for key in node.writes if key in self.chained] if spare else []
        if not (keys and isinstance(node.op, Pointwise)):
            self.made.append(node)
            return
        passes = self.passes
        several = examples_of(node, node.op.main.dims[0], passes.body) > 1
        apart = several and node.phase is Phase.FORWARD
        again = [f"{key} again" if apart else f"{key} masked" for key in keys]
        for key, name in zip(keys, again, strict=True):
            passes.write(name, key, passes.cut(key, spare), passes.dtype(key))
        self.made.append(replace(node, writes=(*node.writes, *again), parts=()))
        self.spares.update(dict.fromkeys((*again, *(f"{key} masked" for key in keys)), spare))
        for key, name in zip(keys, again, strict=True) if apart else ():
            cut = passes.cut(key, spare)
            self.made.append(passes.moved(name, f"{key} masked", cut, node.phase))

    def _with_operands(self, node: ComputeNode) -> ComputeNode:
        """Return a convolution that reads what it would compute: parts are written for halos."""
        wanted = [t.name for t in node.op.inputs if t.name not in node.reads]
        for name in wanted:
            groups, read = made_by(node.generated, {name})
            if not groups or name not in self.passes.body.buffers:
                continue
            if name not in self.written:
                self.written.add(name)
                first, *rest = (replace(group, phase=node.phase) for group in groups)
                made = ComputeNode(
                    name=f"image/{name}",
                    op=first,
                    split=node.split,
                    reads=tuple(key for key in node.reads if key in read),
                    writes=(name,),
                    epilogue=tuple(rest),
                )
                self.add(made)
            others = (operands(node) - {name}) | beside(node)
            kept, needed = made_by(node.generated, others)
            reads = [name if key in read and key not in needed else key for key in node.reads]
            if name not in reads:
                reads.insert(wanted.index(name), name)
            node = replace(node, reads=tuple(dict.fromkeys(reads)), generated=kept, parts=())
        return node

    def _is_shifted_early(self, node: ComputeNode, read: str) -> bool:
        """Return True for an image whose copies for the kernel are made as it is read.

        One that was normalised by the statistics of each of several examples (12 U-Nets of volumes
        and of diffusion on v4 to v6e); copies of others wait for the gradient.
        """
        several = extents_of(node, self.passes.body).examples > 1
        return several and node.phase is Phase.FORWARD and read in self.by_example

    def _reads_spread(self, node: ComputeNode) -> bool:
        """Return True for parts that are normalised as they are read, with spread statistics."""
        if not self.spares.get(node.reads[0]) or self.passes.joins(node):
            return False
        return any(
            group.after_sums and self.sums.are_spread(node, group) for group in node.generated
        )

    def _parts(self, key: str, node: ComputeNode, spare: int) -> str:
        """Add the passes that cut an image for an operation, and return what they write."""
        made = f"{key} for {node.name}"
        source, before = self.passes.whole(key, node.phase)
        self.made += before
        self.made += self.passes.parts(source, made, spare, self.passes.joins(node), node.phase)
        return made

    def _of_wholes(self, entry: Entry) -> Entry:
        """Return an entry that reads whole images; a convolution on parts keeps its operand."""
        kept = entry.reads[:1] if isinstance(entry, ComputeNode) and entry.arrangement else ()
        named = {}
        for key in entry.reads:
            if key in self.spares and key not in kept:
                named[key], before = self.passes.whole(key, entry.phase)
                self.made += before
        if not named:
            return entry
        if isinstance(entry, PlannedCollective):
            moved = (
                replace(one, reads=tuple(named.get(key, key) for key in one.reads))
                for one in entry.collectives
            )
            return replace(entry, collectives=tuple(moved))
        if isinstance(entry, ComputeNode):
            reads = tuple(named.get(key, key) for key in entry.reads)
            return replace(entry, reads=reads, parts=())
        return entry

    def _is_alike(self, node: ComputeNode) -> bool:
        """Return True for a group on images that are all cut alike, and have the same channels."""
        images = self.passes.images(node)
        if not (isinstance(node.op, Pointwise) and images) or node.op.alone:
            return False
        spares = {self.spares.get(key) for key in images}
        made = {t.dims[-1] for t in node.op.outputs if len(t.dims) >= IMAGE_DIMS}
        read = {self.passes.dims(key)[-1] for key in images}
        same = len(images) == 1 or (len(read) == 1 and made <= read)
        return same and len(spares) == 1 and None not in spares

    def _beside(self, node: ComputeNode) -> list[str]:
        """Return the images that the epilogue of an operation reads."""
        read = made_by(node.generated, beside(node))[1]
        return [key for key in self.passes.images(node) if key in read and key != node.reads[0]]


def _chained(cut: Sequence[ComputeNode], passes: ImagePasses) -> Iterator[str]:
    """Yield the operands of convolutions on parts that read no rows of other devices."""
    for node in cut:
        if not passes.joins(node) and not (
            isinstance(node.op, Convolution) and node.op.makes_kernel
        ):
            yield node.op.inputs[0].name


def _pooled(entries: Sequence[Entry]) -> dict[str, int]:
    """Return the stride of the pool that reads each result, directly or once it is normalised."""
    nodes = [entry for entry in entries if isinstance(entry, ComputeNode)]
    norms = {
        key: node.reads[0]
        for node in nodes
        if isinstance(node.op, Pointwise) and node.op.after_sums
        for key in node.writes
    }
    pools = {n.reads[0]: n.op.windows[-1].stride for n in nodes if isinstance(n.op, Pool)}
    return pools | {norms[key]: stride for key, stride in pools.items() if key in norms}


def _reduces_gradients(entry: Entry) -> bool:
    if not isinstance(entry, PlannedCollective):
        return False
    return all(one.purpose is Purpose.GRADIENT for one in entry.collectives)


def _is_convolution(entry: Entry) -> TypeGuard[ComputeNode]:
    return isinstance(entry, ComputeNode) and isinstance(entry.op, Convolution)
