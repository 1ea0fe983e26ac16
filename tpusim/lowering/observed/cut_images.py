"""Images of few examples: the compiler cuts them into the batch of their convolutions.

A tile of memory has eight sublanes, which the examples of an image fill. Where there are fewer, the
image is cut along its minor dimension into eight parts that lie in the batch, each with the halo
that its windows need (XLA's `SpaceToBatchConverter`). Parts have positions without data where what
is padded does not divide evenly, and a chain of convolutions and element-wise groups stays cut.
What needs whole images has them put together, and cut again after it: halos of other devices,
joined channels, pools, matmuls, and statistics of each example where parts have such positions.

Compiled U-Nets of volumes and of diffusion and ResNets with 1 to 16 examples a device on v2 to v6e
(libtpu 0.0.42.1): below eight on all but v2 and v3, and one alone on these.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tpusim.base.phase import Phase
from tpusim.graph import Convolution, Pointwise, Tensor
from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.decisions import Body
from tpusim.lowering.observed.image_cuts import examples_of, extents_of, is_cut
from tpusim.lowering.observed.image_passes import IMAGE_DIMS, ImagePasses
from tpusim.partition import Arrangement, ComputeNode, Purpose


def cut_images(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Return the entries with convolutions of few examples on parts of their images.

    Passes put images together and cut them, see `ImagePasses`. What is summed for the statistics
    of each example is written in f32, turned, and then summed.
    """
    convolutions = (one for one in entries if _is_convolution(one))
    if not any(is_cut(one, body) for one in convolutions if isinstance(one, ComputeNode)):
        return list(entries)
    cutting = _Cutting(ImagePasses(body), _read_in_chains(entries, body))
    for entry in entries:
        cutting.add(entry)
    cutting.multiply_for_kernels()
    return cutting.made


@dataclass(slots=True)
class _Cutting:
    """The entries so far.

    chained: images that convolutions read as they are cut.
    wholes: of the images that are cut, those that were put together.
    written: operands that convolutions would compute as they read, and that are written.
    normalised: results of norms, each with what was normalised.
    statistics: of the images that were normalised, their statistics spread over all positions.
    late: gradients of kernels, which are multiplied after those of activations.
    """

    passes: ImagePasses
    chained: frozenset[str]
    made: list[Entry] = field(default_factory=list)
    wholes: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    normalised: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    late: list[Entry] = field(default_factory=list)

    @property
    def spares(self) -> dict[str, int]:
        return self.passes.spares

    def add(self, entry: Entry) -> None:
        """Add an entry, with what it needs before and after it."""
        if any(not set(node.writes).isdisjoint(entry.reads) for node in self.late):
            if _reduces_gradients(entry):
                self.late.append(entry)
                return
            self.multiply_for_kernels()
        if isinstance(entry, ComputeNode):
            entry = self._from_normalised(entry)
        if not isinstance(entry, ComputeNode):
            self.made.append(self._of_wholes(entry))
        elif isinstance(entry.op, Convolution):
            self._convolution(entry)
        elif self._is_alike(entry):
            self._on_parts(entry, next(self.spares[key] for key in self._images(entry)))
        else:
            self._on_wholes(entry)

    def _from_normalised(self, node: ComputeNode) -> ComputeNode:
        """Return a node of the backward pass that computes a mask from what was normalised.

        It reads that in any case, so the result of the activation function need not be held in
        parts. Keep what was normalised in mind for a group that normalises.
        """
        op = node.op
        if node.phase is Phase.FORWARD:
            if isinstance(op, Pointwise) and op.after_sums:
                self.normalised |= dict.fromkeys(node.writes, node.reads[0])
            return node
        known = {
            key
            for key in self._beside(node)
            if key in self.spares and self.normalised.get(key) in node.reads
        }
        if not known:
            return node
        epilogue = tuple(
            replace(group, inputs=tuple(t for t in group.inputs if t.name not in known))
            for group in node.epilogue
        )
        reads = tuple(key for key in node.reads if key not in known)
        return replace(node, reads=reads, epilogue=epilogue, parts=())

    def _convolution(self, node: ComputeNode) -> None:
        assert isinstance(node.op, Convolution)
        body = self.passes.body
        if is_cut(node, body) or self._reads_spread(node):
            node = self._with_operands(node)
        op, read, size = node.op, node.reads[0], extents_of(node, body)
        assert isinstance(op, Convolution)
        if op.makes_kernel:
            if not op.transposed and (is_cut(node, body) or (size.taps == 1 and read in self.spares)):
                self.late.append(node)
            else:
                self.made.append(self._of_wholes(node))
            return
        goes_on = read in self.spares and not self._joins(node)
        if not (is_cut(node, body) or (size.taps == 1 and goes_on and not size.finer)):
            self._on_wholes(node)
            return
        spare = size.spare_made(self.spares[read] if goes_on else None)
        before = size.spare_read(spare)
        masked = f"{read} masked"
        if not goes_on or self.spares[read] != before:
            made = self._parts(read, node, before)
            node = replace(node, reads=(made, *node.reads[1:]))
        elif masked in self.spares and size.taps > 1:
            node = replace(node, reads=(masked, *node.reads[1:]))
        window = op.windows[-1]
        dims = (window.out_dim, window.in_dim) if op.given else (window.in_dim, window.out_dim)
        node = replace(
            node, arrangement=Arrangement(tuple(zip(dims, (before, spare), strict=True)))
        )
        others = {self.spares[key] for key in self._beside(node) if key in self.spares}
        if others - {spare}:
            self._apart(node, spare, max(others))
        else:
            self._on_parts(node, spare)

    def _on_wholes(self, node: ComputeNode) -> None:
        """Add an operation on whole images; its epilogue is apart if it reads parts."""
        beside = [key for key in self._beside(node) if key in self.spares]
        if beside and isinstance(node.op, Convolution):
            self._apart(node, None, self.spares[beside[0]])
            return
        entry = self._of_wholes(node)
        assert isinstance(entry, ComputeNode)
        self.made.append(self._turned(entry) if isinstance(entry.op, Pointwise) else entry)

    def _turned(self, node: ComputeNode) -> ComputeNode:
        """Return a group on images that were put together, which leaves them turned."""
        buffers, passes = self.passes.body.buffers, self.passes
        read = [buffers[key].local.arrangement for key in self._images(node)]
        if node.arrangement or not any(one is not None and one.lanes for one in read):
            return node
        images = [key for key in node.writes if passes.is_image(key)]
        for key in images:
            passes.write(key, key, passes.turned(key), buffers[key].dtype)
        turned = passes.turned((images or self._images(node))[0])
        return replace(node, arrangement=turned)

    def _apart(self, node: ComputeNode, spare: int | None, beside: int) -> None:
        """Add a convolution, and its epilogue as a group of its own on other parts.

        spare: of its results; None if they are whole. beside: of what the epilogue reads.
        """
        passes, result = self.passes, node.op.outputs[0]
        made, read = _closure(node.generated, {tensor.name for tensor in node.op.inputs})
        own = {*read, node.reads[0], *filter(passes.is_edge, node.reads)}
        beside_it, later = _closure(
            node.generated, {t.name for group in node.epilogue for t in group.inputs}
        )
        raw, parts = f"{result.name} alone", f"{result.name} in parts"
        like = next(key for key in node.writes if passes.is_image(key))
        passes.write(raw, like, None, result.dtype)
        alone = replace(
            node,
            epilogue=(),
            parts=(),
            generated=made,
            reads=tuple(key for key in node.reads if key in own),
            writes=(raw,),
        )
        self.made.append(self._of_wholes(alone))
        if spare is not None:
            passes.hold(raw, spare)
        turned = f"{raw} turned"
        self.made.append(passes.moved(raw, turned, passes.turned(raw), node.phase))
        self.made += passes.parts(turned, parts, beside, False, node.phase)
        first, *rest = node.epilogue
        group = ComputeNode(
            name=f"{node.name}/epilogue",
            op=first,
            split=node.split,
            reads=(parts, *(key for key in node.reads if key in later)),
            writes=node.writes,
            epilogue=tuple(rest),
            generated=beside_it,
        )
        self._on_parts(group, beside)

    def _on_parts(self, node: ComputeNode, spare: int) -> None:
        """Add an operation whose results are cut, and the sums that need whole images."""
        if node.arrangement is None:
            node = replace(node, arrangement=_arrangement(node, spare))
        node = self._with_statistics(node, spare)
        sums = next((group for group in node.epilogue if group.sums), None)
        writes = node.writes
        if sums is not None and spare and _by_example(sums):
            node = self._with_products(node, sums, spare)
            node = self._reading(node, self.statistics.get(sums.inputs[-1].name, ()))
        for key in node.writes:
            if self.passes.is_image(key) and key not in self.spares:
                self.passes.hold(key, spare)
        self._masked(node, spare)
        if sums is not None and sums not in node.epilogue:
            self._sums(node, sums, [key for key in writes if key not in node.writes], spare)

    def _masked(self, node: ComputeNode, spare: int) -> None:
        """Add an operation, and its results again with zeros in their spare for windows."""
        keys = [key for key in node.writes if key in self.chained] if spare else []
        if not (keys and isinstance(node.op, Pointwise)):
            self.made.append(node)
            return
        passes, again = self.passes, []
        examples = examples_of(node, node.op.main.dims[0], passes.body)
        for key in keys:
            apart = examples > 1 and node.phase is Phase.FORWARD
            again.append(f"{key} again" if apart else f"{key} masked")
            passes.write(again[-1], key, passes.cut(key, spare), passes.body.buffers[key].dtype)
            self.spares[again[-1]] = spare
        self.made.append(replace(node, writes=(*node.writes, *again), parts=()))
        for key, source in zip(keys, again, strict=True):
            if source != f"{key} masked":
                cut = passes.cut(key, spare)
                self.made.append(passes.moved(source, f"{key} masked", cut, node.phase))
                self.spares[f"{key} masked"] = spare

    def _with_products(self, node: ComputeNode, sums: Pointwise, spare: int) -> ComputeNode:
        """Return a node that writes what is summed, squares or products, but not the sums."""
        like = next(key for key in (*node.writes, *node.reads) if self.passes.is_image(key))
        products = [f"{sums.name} product {place}" for place in range(len(sums.inputs))]
        for key in products:
            self.passes.write(key, like, self.passes.cut(like, spare), "f32")
            self.spares[key] = spare
        small = {tensor.name for tensor in sums.outputs}
        kept = [key for key in node.writes if key not in small]
        epilogue = tuple(group for group in node.epilogue if group is not sums)
        return replace(node, writes=(*kept, *products), epilogue=epilogue, parts=())

    def _put_off(
        self, node: ComputeNode, sums: Pointwise, writes: Sequence[str], spare: int
    ) -> None:
        """Sum for the gradients of scale and shift later, from the gradient of a norm's result."""
        given = sums.inputs[0]
        made = tuple(tensor for tensor in sums.outputs if tensor.name in writes)
        op = replace(sums, name=f"{sums.name} late", inputs=(given,), outputs=made, flops=2.0)
        cut = self.passes.cut(given.name, spare)
        self.late.append(self.passes.node(op.name, op, (given.name,), tuple(writes), cut))

    def _sums(
        self, node: ComputeNode, sums: Pointwise, writes: Sequence[str], spare: int
    ) -> None:
        """Add the sums of products: each is turned, and summed without its spare."""
        passes = self.passes
        products = [key for key in node.writes if key.startswith(f"{sums.name} product")]
        if len(products) == 1:
            products = [next(key for key in node.writes if passes.is_image(key)), *products]
        part, (*small, last_made) = f"{sums.name} part", writes
        if small:
            self._put_off(node, sums, small, spare)
        passes.body.buffers[part] = passes.body.buffers[last_made]
        for key in products:
            last = key == products[-1]
            turned = f"{key} turned for {sums.name}"
            arrangement = passes.turned(key)
            self.made.append(passes.moved(key, turned, arrangement, node.phase, "f32"))
            tensor = Tensor(turned, passes.dims(turned), dtype="f32")
            name = sums.name if last else part
            op = replace(sums, name=name, inputs=(tensor,), flops=1.0)
            reads, made = ((turned, part), (last_made,)) if last else ((turned,), (part,))
            self.made.append(passes.node(name, op, reads, made, replace(arrangement, cuts=())))

    def _with_statistics(self, node: ComputeNode, spare: int) -> ComputeNode:
        """Return a group that reads the statistics of each example spread over its image."""
        op, passes = node.op, self.passes
        if not (isinstance(op, Pointwise) and op.after_sums and spare and _by_example(op)):
            return node
        if examples_of(node, op.main.dims[0], passes.body) == 1:
            return node
        images, small = self._images(node), node.reads[-1]
        like, made = images[-1], []
        for place in range(2):
            key = f"{node.name} statistics {place}"
            cut = passes.cut(like, spare)
            turned = replace(passes.turned(like), cuts=cut.cuts)
            passes.write(f"{key} turned", like, turned, "f32")
            wide = Tensor(f"{key} turned", passes.dims(like), dtype="f32")
            given = Tensor(small, (), dtype="f32")
            group = Pointwise(
                wide.name, (given,), (wide,), 0.0, keeps="", alone=True, phase=node.phase
            )
            spread = passes.node(wide.name, group, (like,), (wide.name,), turned)
            self.made.append(replace(spread, reads=(small,)))
            self.made.append(passes.moved(wide.name, key, cut, node.phase))
            made.append(key)
        if node.phase is Phase.FORWARD:
            self.statistics[like] = tuple(made)
        else:
            product = f"{small.removesuffix('/sums').removesuffix('/own_sums')}/own_sums product 0"
            made += [product] if product in passes.body.buffers else []
        return self._reading(node, made)

    def _reading(self, node: ComputeNode, keys: Sequence[str]) -> ComputeNode:
        """Return an operation that reads further images in f32."""
        if not keys:
            return node
        tensors = tuple(Tensor(key, self.passes.dims(key), dtype="f32") for key in keys)
        reads = (*node.reads, *keys)
        if isinstance(node.op, Pointwise):
            op = replace(node.op, inputs=(*node.op.inputs, *tensors))
            return replace(node, op=op, reads=reads, parts=())
        first, *rest = node.epilogue
        first = replace(first, inputs=(*first.inputs, *tensors))
        return replace(node, epilogue=(first, *rest), reads=reads, parts=())

    def multiply_for_kernels(self) -> None:
        """Add the gradients of kernels that were put off."""
        late, self.late = self.late, []
        sums = [one for one in late if isinstance(one, ComputeNode) and not _is_convolution(one)]
        self.made += sums
        for one in late:
            if isinstance(one, ComputeNode) and _is_convolution(one):
                self._kernel_gradient(one)
        self.made += [one for one in late if not isinstance(one, ComputeNode)]

    def _kernel_gradient(self, node: ComputeNode) -> None:
        """Add the gradient of a kernel, which reads its image once for each tap, shifted."""
        assert isinstance(node.op, Convolution)
        op, size = node.op, extents_of(node, self.passes.body)
        read, image, window = node.reads[0], op.given[1].name, op.windows[-1]
        joined = self._joins(node)
        spare = self.spares.get(read)
        reads = list(node.reads)
        if spare is None:
            spare = size.spare_made(None)
            if self.passes.is_image(read):
                reads[0] = self._parts(read, node, spare)
        inside = size.spare_read(spare)
        if image in reads and size.taps > 1:
            reads[reads.index(image)] = self._shifted(image, node, inside, joined, size.taps)
        cuts = {window.in_dim: inside, window.out_dim: spare}
        self.made.append(
            replace(
                node, reads=tuple(reads), parts=(), arrangement=Arrangement(tuple(cuts.items()))
            )
        )

    def _shifted(self, key: str, node: ComputeNode, spare: int, joined: bool, taps: int) -> str:
        """Add the passes that write an image once for each tap, and return what they write.

        From whole images each copy is cut by itself. From parts each is shifted, by two passes for
        a stride, and without one they are then written side by side.
        """
        passes, phase = self.passes, node.phase
        made, cut, dtype = f"{key} for {node.name}", passes.cut(key, spare), self._dtype(key)
        if joined or key not in self.spares:
            source = self._whole(key, phase)
            *before, last = passes.parts(source, made, spare, joined, phase)
            self.made += before
            passes.write(made, key, cut, dtype, taps)
            self.made.append(last)
            return made
        assert isinstance(node.op, Convolution)
        strided = node.op.windows[-1].stride > 1
        source, shifts = key, (taps - 1) * (2 if strided else 1)
        for place in range(shifts):
            self.made.append(passes.moved(source, f"{made} {place}", cut, phase))
            source = f"{made} {place}"
        passes.write(source, key, cut, dtype, taps)
        if not strided:
            self.made.append(passes.moved(source, made, cut, phase))
            passes.write(made, key, cut, dtype, taps)
        return source if strided else made

    def _dtype(self, key: str) -> str:
        return self.passes.body.buffers[key].dtype

    def _reads_spread(self, node: ComputeNode) -> bool:
        """Return True for a single tap on parts that are normalised with spread statistics."""
        if node.reads[0] not in self.spares or self._joins(node):
            return False
        return self.spares[node.reads[0]] > 0 and any(
            group.after_sums
            and _by_example(group)
            and examples_of(node, group.main.dims[0], self.passes.body) > 1
            for group in node.generated
        )

    def _parts(self, key: str, node: ComputeNode, spare: int) -> str:
        """Add the passes that cut an image for an operation, and return what they write."""
        source, made = self._whole(key, node.phase), f"{key} for {node.name}"
        self.made += self.passes.parts(source, made, spare, self._joins(node), node.phase)
        return made

    def _whole(self, key: str, phase: Phase) -> str:
        """Return a whole image, with the passes that put it together the first time."""
        if key not in self.spares:
            return key
        if key not in self.wholes:
            self.wholes[key] = f"{key} whole"
            self.made += self.passes.whole(key, self.wholes[key], phase)
        return self.wholes[key]

    def _of_wholes(self, entry: Entry) -> Entry:
        """Return an entry that reads whole images; a convolution on parts keeps its operand."""
        kept = entry.reads[:1] if isinstance(entry, ComputeNode) and entry.arrangement else ()
        named = {
            key: self._whole(key, entry.phase)
            for key in entry.reads
            if key in self.spares and key not in kept
        }
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
        images = self._images(node)
        if not (isinstance(node.op, Pointwise) and images) or node.op.alone:
            return False
        spares = {self.spares.get(key) for key in images}
        made = {t.dims[-1] for t in node.op.outputs if len(t.dims) >= IMAGE_DIMS}
        read = {self.passes.dims(key)[-1] for key in images}
        same = len(images) == 1 or (len(read) == 1 and made <= read)
        return same and len(spares) == 1 and None not in spares

    def _images(self, node: ComputeNode) -> list[str]:
        return [key for key in node.reads if self.passes.is_image(key)]

    def _joins(self, node: ComputeNode) -> bool:
        """Return True for an operation that reads rows of other devices."""
        return any(self.passes.is_edge(key) for key in node.reads)

    def _beside(self, node: ComputeNode) -> list[str]:
        """Return the images that the epilogue of an operation reads."""
        groups = {t.name for group in node.epilogue for t in group.inputs}
        read = _closure(node.generated, groups)[1]
        return [key for key in self._images(node) if key in read and key != node.reads[0]]

    def _with_operands(self, node: ComputeNode) -> ComputeNode:
        """Return a convolution that reads what it would compute: parts are written for halos."""
        wanted = [t.name for t in node.op.inputs if t.name not in node.reads]
        beside = {t.name for group in node.epilogue for t in group.inputs}
        for name in wanted:
            groups, read = _closure(node.generated, {name})
            if not groups or name not in self.passes.body.buffers:
                continue
            if name not in self.written:
                first, *rest = (replace(group, phase=node.phase) for group in groups)
                self.written.add(name)
                self.add(
                    ComputeNode(
                        name=f"image/{name}",
                        op=first,
                        split=node.split,
                        reads=tuple(key for key in node.reads if key in read),
                        writes=(name,),
                        epilogue=tuple(rest),
                    )
                )
            others = {t.name for t in node.op.inputs if t.name != name} | beside
            kept, needed = _closure(node.generated, others)
            reads = [name if key in read and key not in needed else key for key in node.reads]
            if name not in reads:
                reads.insert(1 if wanted[0] != name else 0, name)
            node = replace(node, reads=tuple(dict.fromkeys(reads)), generated=kept, parts=())
        return node


def _read_in_chains(entries: Sequence[Entry], body: Body) -> frozenset[str]:
    """Return the operands of convolutions on parts that read no rows of other devices."""
    found = set()
    for node in entries:
        if isinstance(node, ComputeNode) and isinstance(node.op, Convolution):
            joins = any(key in body.buffers and body.buffers[key].local.edge for key in node.reads)
            if not (joins or node.op.makes_kernel) and is_cut(node, body):
                found.add(node.op.inputs[0].name)
    return frozenset(found)


def _reduces_gradients(entry: Entry) -> bool:
    if not isinstance(entry, PlannedCollective):
        return False
    return all(one.purpose is Purpose.GRADIENT for one in entry.collectives)


def _is_convolution(entry: Entry) -> bool:
    return isinstance(entry, ComputeNode) and isinstance(entry.op, Convolution)


def _closure(
    groups: Sequence[Pointwise], names: Collection[str]
) -> tuple[tuple[Pointwise, ...], set[str]]:
    """Return the groups that make tensors, in order, and all that they and `names` read."""
    needed: list[Pointwise] = []
    read = set(names)
    for group in reversed(groups):
        if any(tensor.name in read for tensor in group.outputs):
            needed.append(group)
            read |= {tensor.name for tensor in group.inputs}
    return tuple(reversed(needed)), read


def _arrangement(node: ComputeNode, spare: int) -> Arrangement:
    """Return the arrangement of a group whose images are cut, under all names of the dimension."""
    groups = (*node.generated, node.op, *node.epilogue)
    tensors = [t for group in groups for t in (*group.inputs, *group.outputs)]
    dims = dict.fromkeys(t.dims[-2] for t in tensors if len(t.dims) >= IMAGE_DIMS)
    return Arrangement(tuple((dim, spare) for dim in dims))


def _by_example(group: Pointwise) -> bool:
    """Return True for statistics of each example: they have the dimension of the batch."""
    first = group.main.dims[0]
    return any(first in t.dims for t in (group.outputs if group.sums else group.inputs[-1:]))
