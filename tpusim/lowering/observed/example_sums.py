"""Statistics of each example over images that are cut.

Parts with positions that hold no data are not summed as they are. What is summed, squares in the
forward pass and two products in the backward pass, is written in f32, turned, and summed without
these positions. With several examples the statistics are then spread over all positions, once for
each of mean and deviation, and read so; those of the forward pass are held for the backward pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tpusim.base.phase import Phase
from tpusim.graph import Pointwise, Tensor
from tpusim.lowering.observed.image_cuts import examples_of
from tpusim.lowering.observed.image_groups import by_example
from tpusim.lowering.observed.image_passes import ImagePasses
from tpusim.partition import ComputeNode


@dataclass(frozen=True, slots=True)
class ExampleSums:
    """Maker of the sums of examples in a body.

    spread: of the images that were normalised, their statistics at all positions.
    """

    passes: ImagePasses
    spread: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def apart(self, node: ComputeNode, spare: int) -> Pointwise | None:
        """Return the group of an epilogue that has to be summed from whole images, if any."""
        sums = next((group for group in node.epilogue if group.sums), None)
        return sums if sums is not None and spare and by_example(sums) else None

    def with_products(self, node: ComputeNode, sums: Pointwise, spare: int) -> ComputeNode:
        """Return an operation that writes what is summed, but not the sums."""
        passes = self.passes
        like = next(key for key in (*node.writes, *node.reads) if passes.is_image(key))
        products = _products(sums)
        for key in products:
            passes.write(key, like, passes.cut(like, spare), "f32")
            passes.spares[key] = spare
        small = {tensor.name for tensor in sums.outputs}
        kept = [key for key in node.writes if key not in small]
        epilogue = tuple(group for group in node.epilogue if group is not sums)
        node = replace(node, writes=(*kept, *products), epilogue=epilogue, parts=())
        return self._reading(node, self.spread.get(sums.inputs[-1].name, ()))

    def summed(self, node: ComputeNode, sums: Pointwise) -> Iterator[ComputeNode]:
        """Yield the sums of products: each is turned, and summed without its spare.

        node: `with_products`.
        """
        passes, (*_, made) = self.passes, (tensor.name for tensor in sums.outputs)
        products = _products(sums)
        if len(products) == 1:
            products.insert(0, next(key for key in node.writes if passes.is_image(key)))
        part = f"{made} part"
        passes.body.buffers[part] = passes.body.buffers[made]
        for key in products:
            last = key == products[-1]
            turned, arrangement = f"{key} turned for {made}", passes.turned(key)
            yield passes.moved(key, turned, arrangement, node.phase, "f32")
            tensor = Tensor(turned, passes.dims(turned), dtype="f32")
            name, reads = (made, (turned, part)) if last else (part, (turned,))
            op = replace(sums, name=name, inputs=(tensor,), flops=1.0)
            yield passes.node(name, op, reads, (name,), replace(arrangement, cuts=()))

    def of_scales(self, node: ComputeNode, sums: Pointwise, spare: int) -> Iterator[ComputeNode]:
        """Yield the sum for the gradients of scale and shift, from that of a norm's result."""
        *made, _ = sums.outputs
        if made:
            (given, *_) = sums.inputs
            op = replace(sums, name=f"{sums.name} late", inputs=(given,), outputs=tuple(made))
            cut = self.passes.cut(given.name, spare)
            names = tuple(tensor.name for tensor in made if tensor.name in node.writes)
            yield self.passes.node(op.name, op, (given.name,), names, cut)

    def are_spread(self, node: ComputeNode, group: Pointwise) -> bool:
        """Return True for statistics of each of several examples of a device."""
        if not by_example(group):
            return False
        return examples_of(node, group.main.dims[0], self.passes.body) > 1

    def with_statistics(
        self, node: ComputeNode, spare: int
    ) -> tuple[list[ComputeNode], ComputeNode]:
        """Return the passes that spread the statistics of a norm, and the norm that reads them.

        The gradient of a norm then reads the product in f32, too.
        """
        op = node.op
        if not (isinstance(op, Pointwise) and op.after_sums and spare):
            return [], node
        if not self.are_spread(node, op):
            return [], node
        like = [key for key in node.reads if self.passes.is_image(key)][-1]
        keys = [f"{node.name} statistics {place}" for place in range(2)]
        made = [each for key in keys for each in self._spread(key, node, like, spare)]
        if node.phase is Phase.FORWARD:
            self.spread[like] = tuple(keys)
        else:
            own = f"{op.name}/own_sums product 0"
            keys += [own] if own in self.passes.body.buffers else []
        return made, self._reading(node, keys)

    def _spread(self, key: str, node: ComputeNode, like: str, spare: int) -> Iterator[ComputeNode]:
        """Yield the passes that write a statistic at all positions: turned, and in parts."""
        passes, small, turned = self.passes, node.reads[-1], f"{key} turned"
        cut = passes.cut(like, spare)
        arrangement = replace(passes.turned(like), cuts=cut.cuts)
        passes.write(turned, like, arrangement, "f32")
        wide, given = Tensor(turned, passes.dims(like), dtype="f32"), Tensor(small, (), dtype="f32")
        op = Pointwise(turned, (given,), (wide,), 0.0, keeps="", alone=True, phase=node.phase)
        yield replace(passes.node(turned, op, (like,), (turned,), arrangement), reads=(small,))
        yield passes.moved(turned, key, cut, node.phase)

    def _reading(self, node: ComputeNode, keys: Sequence[str]) -> ComputeNode:
        """Return an operation that reads further images in f32."""
        if not keys:
            return node
        tensors = tuple(Tensor(key, self.passes.dims(key), dtype="f32") for key in keys)
        node = replace(node, reads=(*node.reads, *keys), parts=())
        if isinstance(node.op, Pointwise):
            return replace(node, op=replace(node.op, inputs=(*node.op.inputs, *tensors)))
        first, *rest = node.epilogue
        first = replace(first, inputs=(*first.inputs, *tensors))
        return replace(node, epilogue=(first, *rest))


def _products(sums: Pointwise) -> list[str]:
    """Return the buffers of what a group sums: squares, or a gradient and it times its input."""
    return [f"{sums.name} product {place}" for place in range(len(sums.inputs))]
