"""Sizes of a partitioned graph: local extents as functions of the sizes of mesh axes.

A partitioned graph names, for each dimension, the axes that shard it; this module turns that into
numbers, for one mesh (Python ints, exact) or for many at once (float64 arrays).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil

import numpy as np

from tpusim.graph import COMPUTE, INPUT, STORED, is_sequence, plain_dim
from tpusim.partition.expert_load import ExpertCapacity, busiest_load
from tpusim.partition.layout import PARTS, Arrangement, LocalShape
from tpusim.plan import DEFAULT_TILES, AttentionKernel, Axes
from tpusim.program import LANES, Number, largest, round_up, stored_elements

CHANNELS, IMAGE_DIMS = "channels", 4
"""The last dimension of images, and how many they have at least unless their positions are one."""

BATCH = "batch"
"""The first dimension of images whose positions are one dimension, such as default boxes."""

DTYPE_BYTES = {
    "f32": 4.0,
    "s32": 4.0,
    "u16": 2.0,
    "u32": 4.0,
    "bf16": 2.0,
    "f16": 2.0,
    "int8": 1.0,
    "fp8": 1.0,
    "pred": 1.0,
    "int4": 0.5,
    "fp4": 0.5,
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of dimensions and of mesh axes, and the extents that follow from them.

    With arrays for axes, every answer is an array of the same length, one element a mesh.

    loads: tokens of each expert over the mean; empty if all have as many. If experts are sharded, a
        device's slots are those of the busiest device.
    capacity: of buffers of slots, where no token is dropped.
    tiles: of grouped kernels: rows, and elements of `embed` and of the experts' width.
    kernel: of fused attention.
    scatters: gradients of sorted tokens are scattered, see `Experts.sort_gradient`.
    arrangement: of the images whose sizes these are.
    """

    dims: Mapping[str, int]
    axes: Mapping[str, Number]
    compute_dtype: str = "bf16"
    stored_dtype: str = "f32"
    loads: tuple[float, ...] = ()
    capacity: ExpertCapacity | None = None
    tiles: Sequence[int] = DEFAULT_TILES
    kernel: AttentionKernel = field(default_factory=AttentionKernel)
    scatters: bool = False
    arrangement: Arrangement = field(default_factory=Arrangement)
    _arranged: dict[Arrangement, "Sizes"] = field(default_factory=dict, init=False)
    _extents: dict[tuple[str, Axes], Number] = field(default_factory=dict, init=False)
    _products: dict[tuple[object, ...], Number] = field(default_factory=dict, init=False)
    _elements: dict[int, tuple[LocalShape, Number]] = field(default_factory=dict, init=False)
    _tiled: dict[int, tuple[LocalShape, Number]] = field(default_factory=dict, init=False)

    def arranged(self, arrangement: Arrangement | None) -> "Sizes":
        """Return the sizes of images in another arrangement; these, if it is None."""
        if arrangement is None:
            return self
        found = self._arranged.get(arrangement)
        if found is None:
            found = self._arranged[arrangement] = replace(self, arrangement=arrangement)
        return found

    def parts(self, dims: tuple[str, ...]) -> int:
        """Return in how many parts an image of these dimensions lies in the batch."""
        return PARTS if any(dim in dims for dim, _ in self.arrangement.cuts) else 1

    def group(self, axes: Axes) -> Number:
        """Return the number of devices in a group over `axes`."""
        count: Number = 1
        for axis in axes:
            count = count * self.axes[axis]
        return count

    def extent(self, dim: str, axes: Axes) -> Number:
        """Return the elements of `dim` on one device; the last shard is padded, as in GSPMD."""
        key = (dim, axes)
        found = self._extents.get(key)
        if found is None:
            found = self.shard(self.dims[dim], axes)
            for cut, spare in self.arrangement.cuts:
                if cut == dim:
                    found = PARTS * (_ceil_div(found, PARTS) + spare)
            self._extents[key] = found
        return found

    def shard(self, size: int, axes: Axes) -> Number:
        """Return the elements of `size` on one device: of dimensions that are flattened to one."""
        return _ceil_div(size, self.group(axes))

    def elements(self, local: LocalShape) -> Number:
        """Return the elements of a local tensor, worked out once for each object."""
        found = self._elements.get(id(local))
        if found is None:
            found = self._elements[id(local)] = local, self._count(local)
        return found[1]

    def tiled_elements(self, local: LocalShape) -> Number:
        """Return the elements of a local tensor with those that only fill its tiles."""
        found = self._tiled.get(id(local))
        if found is None:
            tiled = self.elements(local) * self.lanes(local.dims, local.split())
            found = self._tiled[id(local)] = local, tiled
        return found[1]

    def _count(self, local: LocalShape) -> Number:
        split = local.split()
        if not (local.halos or local.edge):
            return local.count * self.product(local.dims, split)
        rows = {halo.dim: _each(halo.extended, self.group(split[halo.dim])) for halo in local.halos}
        if local.edge:
            dim = local.edge.halo.dim
            rows[dim] = _each(local.edge.rows, self.group(split[dim]))
        count = self.product(tuple(dim for dim in local.dims if dim not in rows), split)
        for extent in rows.values():
            count = count * extent
        return local.count * count

    def product(self, dims: tuple[str, ...], split: Mapping[str, Axes]) -> Number:
        """Return the product of the local extents of `dims`, sharded as `split` says."""
        each = [split.get(dim, ()) for dim in dims]
        key = (dims, *each, split.get("expert", ()))
        count = self._products.get(key)
        if count is None:
            count = 1
            for dim, axes in zip(dims, each, strict=True):
                count = count * self.extent(dim, axes)
            if self.loads and "slot" in dims:
                count = count * self._busiest(split.get("expert", ()))
            self._products[key] = count
        return count

    def lanes(self, dims: tuple[str, ...], split: Mapping[str, Axes]) -> Number:
        """Return the elements of a tensor's tiles over those that they hold, at least 1.

        What convolutions read and write, [batch, positions..., channels], has its channels in the
        lanes and the batch in the sublanes, or the other way round (`stored_elements`). Layouts on
        v4, v5e and v5p, libtpu 0.0.42.1: 64 channels of 128 images are not padded, of 64 images
        twice, 32 channels of one volume four times. Element-wise work fills whole tiles too: by the
        compiler's estimates on v5e, each element of 64 channels of 16 images takes twice the cycles
        of one of 128. An image that is cut has its parts in the batch.
        """
        if self.arrangement.lanes in dims:
            wide = self.extent(self.arrangement.lanes, split.get(self.arrangement.lanes, ()))
            return round_up(wide, LANES) / wide
        if self.arrangement.rows == 0 or not _of_image(dims):
            return 1.0
        batch, channels = (self.extent(dim, split.get(dim, ())) for dim in (dims[0], dims[-1]))
        batch = batch * self.parts(dims)
        stored = stored_elements(largest(batch, self.arrangement.rows), channels)
        return stored / (batch * channels)

    def spare(self, dims: tuple[str, ...], split: Mapping[str, Axes]) -> Number:
        """Return the capacity of a buffer over its contents: above 1 for slots of experts."""
        if self.capacity is None or "slot" not in dims:
            return 1
        axes = split.get("expert", ())
        return self.capacity.over(self.group(axes), self._busiest(axes) if self.loads else 1)

    def _busiest(self, axes: Axes) -> Number:
        devices = self.group(axes)
        if isinstance(devices, np.ndarray):
            return np.array([busiest_load(self.loads, int(n)) for n in devices])
        return busiest_load(self.loads, int(devices))

    def padded(self, dims: tuple[str, ...], split: Mapping[str, Axes]) -> Number:
        """Return the product of the global extents of `dims` with their padding."""
        count: Number = 1
        for dim in dims:
            axes = split.get(dim, ())
            count = count * self.extent(dim, axes) * self.group(axes)
        return count

    def padding(self, local: LocalShape) -> Number:
        """Return the fraction of a local tensor that is padding, on average over the devices.

        Rows of halos count none.
        """
        if local.halos or local.edge:
            return 0
        real: Number = 1
        for dim in local.dims:
            real = real * self.dims[dim]
        return 1 - real / self.padded(local.dims, local.split())

    def dtype(self, name: str) -> str:
        """Resolve `compute` and `stored` to the plan's dtypes; return other names unchanged."""
        if name == COMPUTE:
            return self.compute_dtype
        return self.stored_dtype if name == STORED else name

    def itemsize(self, dtype: str) -> float:
        """Return the bytes of an element."""
        return DTYPE_BYTES[self.dtype(dtype)]

    def nbytes(self, local: LocalShape, dtype: str) -> Number:
        """Return the bytes of a local tensor, padding included."""
        return self.elements(local) * self.itemsize(dtype)


def _each(rows: Callable[[int], int], shards: Number) -> Number:
    """Return the rows for one number of shards, or for each of an array."""
    if isinstance(shards, np.ndarray):
        return np.array([rows(int(one)) for one in shards], float)
    return rows(int(shards))


def _ceil_div(size: Number, parts: Number) -> Number:
    if isinstance(parts, np.ndarray) or isinstance(size, np.ndarray):
        return np.ceil(size / parts)
    return -(-size // int(parts)) if parts == int(parts) else ceil(size / parts)


@cache
def _of_image(dims: tuple[str, ...]) -> bool:
    """Return True for [batch, positions..., channels]; tokens of a sequence are no positions."""
    if len(dims) < IMAGE_DIMS - 1 or plain_dim(dims[-1]).removeprefix(INPUT) != CHANNELS:
        return False
    return len(dims) >= IMAGE_DIMS or (plain_dim(dims[0]) == BATCH and not is_sequence(dims[1]))
