"""Gradients of kernels over images that are cut: an image is read once for each tap, shifted."""

from collections.abc import Iterator
from dataclasses import replace

from tpusim.graph import Convolution
from tpusim.lowering.observed.image_cuts import extents_of
from tpusim.lowering.observed.image_passes import ImagePasses
from tpusim.partition import Arrangement, ComputeNode


def kernel_gradient(node: ComputeNode, passes: ImagePasses) -> Iterator[ComputeNode]:
    """Yield the gradient of a kernel on parts, after the passes that make its operands.

    The gradient that it reads is cut if it is whole, and the image is written for each tap.
    """
    assert isinstance(node.op, Convolution)
    size, window = extents_of(node, passes.body), node.op.windows[-1]
    (read, *_), image = node.reads, node.op.given[1].name
    reads = list(node.reads)
    spare = passes.spares.get(read, size.spare_made(None))
    if read not in passes.spares and passes.is_image(read):
        reads[0] = f"{read} for {node.name}"
        yield from passes.parts(read, reads[0], spare, passes.joins(node), node.phase)
    inside = size.spare_read(spare)
    if image in reads and size.taps > 1:
        made = _name(image, node)
        if made not in passes.body.buffers:
            yield from shifted_images(image, node, inside, passes)
        reads[reads.index(image)] = made
    cuts = {window.in_dim: inside, window.out_dim: spare}
    arrangement = Arrangement(tuple(cuts.items()))
    yield replace(node, reads=tuple(reads), parts=(), arrangement=arrangement)


def shifted_images(
    key: str, node: ComputeNode, spare: int, passes: ImagePasses
) -> Iterator[ComputeNode]:
    """Yield the passes that write an image once for each tap, the last of which has all of them.

    From whole images each copy is cut by itself. From parts each is shifted, by two passes for a
    stride; without one they are then written side by side (13 kernels of U-Nets of volumes on v4,
    v5e and v6e, libtpu 0.0.42.1).
    """
    assert isinstance(node.op, Convolution)
    taps, phase = extents_of(node, passes.body).taps, node.phase
    made, cut, dtype = _name(key, node), passes.cut(key, spare), passes.dtype(key)
    if passes.joins(node) or key not in passes.spares:
        source, before = passes.whole(key, phase)
        yield from before
        *steps, last = passes.parts(source, made, spare, passes.joins(node), phase)
        passes.write(made, key, cut, dtype, taps)
        yield from (*steps, last)
        return
    strided = node.op.windows[-1].stride > 1
    source, shifts = key, (taps - 1) * (2 if strided else 1)
    names = [f"{made} {place}" for place in range(shifts - strided)] + [made]
    for name in names:
        last = passes.moved(source, name, cut, phase)
        source = name
        if name == made or (not strided and name == names[-2]):
            passes.write(name, key, cut, dtype, taps)
        yield last


def _name(key: str, node: ComputeNode) -> str:
    """Return the buffer of an image that is shifted for a kernel's gradient."""
    assert isinstance(node.op, Convolution)
    return f"{key} shifted for {node.op.kernel.name}"
