"""Passes over images of few examples: put together, cut into parts, and turned for sums.

An image that is cut lies in memory with its parts in the batch and its channels in the lanes. It is
put together and padded in another order, which fills the lanes best.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tpusim.base.phase import Phase
from tpusim.graph import Pointwise, Tensor
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.partition import IMAGE_DIMS, Arrangement, Buffer, ComputeNode, LocalShape
from tpusim.program import LANES, round_up


@dataclass(frozen=True, slots=True)
class ImagePasses:
    """Maker of the passes of a body; what they write is added to its buffers.

    spares: of the images that are cut, the positions without data that each part has.
    wholes: of these, the images that were put together.
    """

    body: Body
    spares: dict[str, int] = field(default_factory=dict)
    wholes: dict[str, str] = field(default_factory=dict)

    def whole(self, key: str, phase: Phase) -> tuple[str, list[ComputeNode]]:
        """Return a whole image, and the passes that put it together the first time.

        It is turned, and its spare dropped.
        """
        if key not in self.spares or key in self.wholes:
            return self.wholes.get(key, key), []
        made = self.wholes[key] = f"{key} whole"
        turned = self.turned(key)
        steps = (
            (f"{made} turned", key, turned),
            (made, f"{made} turned", replace(turned, cuts=())),
        )
        return made, [self.moved(source, name, form, phase) for name, source, form in steps]

    def parts(
        self, key: str, made: str, spare: int, joined: bool, phase: Phase
    ) -> Iterator[ComputeNode]:
        """Yield the passes that cut a whole image: it is padded, and turned back with its halos.

        joined: the rows of other devices are joined to it first.
        """
        cut = self.cut(key, spare)
        padded = replace(self.turned(key), cuts=cut.cuts)
        steps = [(joined, "joined", replace(padded, cuts=())), (spare > 0, "padded", padded)]
        for needed, name, arrangement in (*steps, (joined, "with halos", padded)):
            if needed:
                yield self.moved(key, f"{made} {name}", arrangement, phase)
                key = f"{made} {name}"
        yield self.moved(key, made, cut, phase)
        self.spares[made] = spare

    def cut(self, key: str, spare: int) -> Arrangement:
        """Return the arrangement of an image whose parts have so many positions without data."""
        return Arrangement(((self.dims(key)[-2], spare),))

    def turned(self, key: str) -> Arrangement:
        """Return the arrangement of an image whose lanes are filled best, cut as it is."""
        local = self.body.buffers[key].local
        lanes = self.body.ask(_fullest, local.dims, local.layout)
        return Arrangement(
            self.cut(key, self.spares[key]).cuts if key in self.spares else (), lanes
        )

    def moved(
        self, key: str, made: str, arrangement: Arrangement, phase: Phase, dtype: str = ""
    ) -> ComputeNode:
        """Return a pass that reads an image and writes it in another arrangement or dtype."""
        source = self.body.buffers[key]
        self.write(made, key, arrangement, dtype or source.dtype)
        tensor = Tensor(key, source.local.dims, dtype=source.dtype)
        op = Pointwise(
            f"{made}/image", (tensor,), (replace(tensor, name=made),), 0.0, keeps="", alone=True,
            phase=phase,
        )  # fmt: skip
        return self.node(made, op, (key,), (made,), source.local.arrangement)

    def node(
        self,
        name: str,
        op: Pointwise,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        arrangement: Arrangement | None,
    ) -> ComputeNode:
        """Return a pass over images of one arrangement."""
        local = self.body.buffers[reads[0]].local
        split = tuple((dim, axes) for dim, axes in local.split().items() if axes)
        return ComputeNode(
            name=f"image/{name}", op=op, split=split, reads=reads, writes=writes,
            arrangement=arrangement,
        )  # fmt: skip

    def write(
        self, made: str, like: str, arrangement: Arrangement | None, dtype: str, count: int = 1
    ) -> None:
        """Add the buffer of images like another, in an arrangement and a dtype of their own."""
        known = self.body.buffers[like]
        shape = LocalShape(
            known.local.dims, known.local.layout, count=count, arrangement=arrangement
        )
        self.body.buffers[made] = Buffer(shape, dtype, known.category)

    def hold(self, key: str, spare: int) -> None:
        """Note that an image is cut, and give its buffer the arrangement."""
        buffer = self.body.buffers[key]
        self.spares[key] = spare
        local = replace(buffer.local, arrangement=self.cut(key, spare))
        self.body.buffers[key] = replace(buffer, local=local)

    def dtype(self, key: str) -> str:
        """Return the dtype of a buffer."""
        return self.body.buffers[key].dtype

    def dims(self, key: str) -> tuple[str, ...]:
        """Return the dimensions of a buffer."""
        return self.body.buffers[key].local.dims

    def is_image(self, key: str) -> bool:
        """Return True for the buffer of an activation with positions, or of its gradient."""
        buffer = self.body.buffers.get(key)
        if buffer is None or buffer.local.edge or buffer.category == "weights":
            return False
        return len(buffer.local.dims) >= IMAGE_DIMS

    def images(self, node: ComputeNode) -> list[str]:
        """Return the images that an operation reads."""
        return [key for key in node.reads if self.is_image(key)]

    def is_edge(self, key: str) -> bool:
        """Return True for the rows that another device has sent."""
        buffer = self.body.buffers.get(key)
        return buffer is not None and buffer.local.edge is not None

    def joins(self, node: ComputeNode) -> bool:
        """Return True for an operation that reads rows of other devices."""
        return any(map(self.is_edge, node.reads))


def _fullest(
    decisions: LoweringDecisions, dims: tuple[str, ...], layout: tuple[tuple[str, ...], ...]
) -> str:
    """Return the dimension that fills the lanes best: channels, or positions that are not cut."""
    axes = dict(zip(dims, layout, strict=True))

    def stretch(dim: str) -> float:
        extent = decisions.sizes.extent(dim, axes[dim])
        return float(round_up(extent, LANES) / extent)

    return min((dims[-1], *dims[1:-2]), key=stretch)
