"""The convolutions that are compiled: layers of published networks, at batches of one device."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = KINDS = ("forward", "input gradient", "weight gradient")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A convolution [batch, *size, in_channels] by [*window, in_channels / groups, out_channels].

    padding: `SAME` or `VALID`.
    transposed: True if the strides are those of the result, as in decoders.
    first: True if its input is data, whose gradient no training step needs.
    """

    batch: int
    size: tuple[int, ...]
    window: tuple[int, ...]
    in_channels: int
    out_channels: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    padding: str = "SAME"
    transposed: bool = False
    first: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that a training step runs."""
        return tuple(kind for kind in KINDS if not (self.first and kind == INPUT_GRADIENT))

    @property
    def outputs(self) -> tuple[int, ...]:
        """Sizes of the result."""
        pairs = zip(self.size, self.window, strict=True)
        if self.transposed:
            return tuple(size * self.stride for size in self.size)
        if self.padding == "SAME":
            return tuple(-(-size // self.stride) for size in self.size)
        return tuple((size - taps) // self.stride + 1 for size, taps in pairs)

    @property
    def held_out(self) -> bool:
        """True for the half of the shapes that no constant is fitted to."""
        return int(hashlib.sha256(str(self).encode()).hexdigest(), 16) % 2 == 1

    def __str__(self) -> str:
        size, window = ("x".join(map(str, numbers)) for numbers in (self.size, self.window))
        way = "transposed " if self.transposed else ""
        return (
            f"{way}{self.batch}x{size}x{self.in_channels} by {window}x{self.out_channels} stride "
            f"{self.stride} dilation {self.dilation} groups {self.groups} {self.padding}"
        )


def _equal_sides(
    dims: int,
    batch: int,
    side: int,
    window: int,
    in_channels: int,
    out_channels: int,
    **more: object,
) -> Shape:
    """Return a shape whose positions and taps are as many in each of `dims` dimensions."""
    return Shape(
        batch=batch,
        size=(side,) * dims,
        window=(window,) * dims,
        in_channels=in_channels,
        out_channels=out_channels,
        **more,
    )


_square, _cube = partial(_equal_sides, 2), partial(_equal_sides, 3)


def _residual_networks() -> Iterator[Shape]:
    """ResNet-50, with its stem as it is and after space-to-depth."""
    for batch in (16, 64, 256):
        yield _square(batch, 224, 7, 3, 64, stride=2, first=True)
        yield _square(batch, 112, 4, 12, 64, first=True)
    for batch, side, before, after in (
        *((32, 56, 64, 64), (128, 56, 64, 256), (64, 56, 256, 64), (256, 28, 128, 512)),
        *((128, 28, 512, 128), (64, 14, 256, 1024), (32, 7, 512, 2048), (128, 7, 2048, 512)),
    ):
        yield _square(batch, side, 1, before, after)
    for batch in (32, 128):
        for side, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
            yield _square(batch, side, 3, channels, channels)
    for side, channels in ((56, 128), (28, 256), (14, 512)):
        yield _square(64, side, 3, channels, channels, stride=2)
    yield _square(128, 56, 1, 256, 512, stride=2)
    yield _square(128, 14, 1, 1024, 2048, stride=2)


def _volumes() -> Iterator[Shape]:
    """3-D U-Net: levels of halved size, and its transposed convolutions."""
    yield _cube(1, 128, 3, 1, 32, first=True)
    for batch, side, before, after in (
        *((1, 128, 32, 32), (2, 64, 64, 64), (2, 32, 128, 128), (2, 16, 256, 256)),
        *((2, 8, 320, 320), (4, 4, 320, 320), (1, 64, 128, 64), (1, 32, 256, 128)),
    ):
        yield _cube(batch, side, 3, before, after)
    for batch, side, before, after in ((1, 128, 32, 64), (2, 32, 128, 256), (2, 8, 320, 320)):
        yield _cube(batch, side, 3, before, after, stride=2)
    for batch, side, before, after in ((1, 64, 64, 32), (2, 16, 256, 128), (2, 4, 320, 320)):
        yield _cube(batch, side, 2, before, after, stride=2, transposed=True)
    yield _cube(1, 128, 1, 32, 3)


def _diffusion() -> Iterator[Shape]:
    """Stable Diffusion's U-Net and autoencoder."""
    for batch, side, before, after in (
        *((8, 64, 320, 320), (4, 32, 640, 640), (8, 16, 1280, 1280)),
        *((4, 64, 640, 320), (8, 16, 2560, 1280), (8, 64, 4, 320)),
        *((8, 64, 320, 4), (2, 256, 256, 256), (32, 64, 320, 320)),
    ):
        yield _square(batch, side, 3, before, after)
    yield _square(8, 64, 3, 320, 320, stride=2)
    yield _square(16, 32, 1, 1280, 640)


def _weather() -> Iterator[Shape]:
    """MetNet-2: dilated convolutions on a wide context."""
    for dilation in (1, 2, 8, 32, 128):
        yield _square(1, 256, 3, 384, 384, dilation=dilation)
    for dilation in (4, 16, 64):
        yield _square(2, 128, 3, 256, 256, dilation=dilation)


def _speech() -> Iterator[Shape]:
    """Conformers: depthwise 1-D convolutions, and subsampling by two 3 x 3 convolutions."""
    for batch, length, window, channels in (
        *((16, 512, 32, 512), (64, 256, 32, 1024), (32, 256, 5, 1024), (16, 512, 5, 3072)),
        *((8, 1024, 32, 2048), (8, 1024, 15, 512)),
    ):
        yield Shape(
            batch=batch, size=(length,), window=(window,), in_channels=channels,
            out_channels=channels, groups=channels,
        )  # fmt: skip
    yield Shape(
        batch=16,
        size=(2048, 80),
        window=(3, 3),
        in_channels=1,
        out_channels=128,
        stride=2,
        first=True,
    )
    yield Shape(
        batch=16, size=(1024, 40), window=(3, 3), in_channels=128, out_channels=32, stride=2
    )
    yield Shape(
        batch=16, size=(1024, 40), window=(3, 3), in_channels=512, out_channels=512, stride=2
    )
    yield Shape(batch=32, size=(3000,), window=(3,), in_channels=80, out_channels=1024, first=True)
    yield Shape(batch=32, size=(3000,), window=(3,), in_channels=1024, out_channels=1024, stride=2)


def _patches() -> Iterator[Shape]:
    """Patch embeddings of ViT and ConvNeXt."""
    for batch, side, window, after in (
        *((64, 224, 16, 768), (32, 224, 14, 1280), (64, 336, 14, 1024)),
        (64, 224, 4, 192),
    ):
        yield _square(batch, side, window, 3, after, stride=window, padding="VALID", first=True)
    yield _square(64, 56, 2, 96, 192, stride=2, padding="VALID")


def _grouped() -> Iterator[Shape]:
    """Depthwise convolutions of ConvNeXt and MobileNet, and the groups of ResNeXt."""
    for batch, side, window, channels in (
        *((64, 56, 7, 96), (64, 28, 7, 192), (64, 14, 7, 384), (64, 7, 7, 768)),
        *((64, 112, 3, 32), (64, 56, 3, 128), (64, 28, 3, 256), (64, 14, 3, 512)),
    ):
        yield _square(batch, side, window, channels, channels, groups=channels)
    yield _square(64, 112, 3, 64, 64, stride=2, groups=64)
    for side, channels in ((56, 128), (28, 256), (14, 512), (7, 1024)):
        yield _square(64, side, 3, channels, channels, groups=32)


def _detection() -> Iterator[Shape]:
    """SSD: its backbone on 300 x 300 images and its heads; DeepLab and U-Net in two dimensions."""
    for batch, side, before, after in (
        *((32, 38, 256, 256), (32, 38, 256, 324), (32, 5, 256, 486)),
        *((16, 10, 512, 486), (16, 300, 64, 64)),
    ):
        yield _square(batch, side, 3, before, after)
    for batch, side, before, after in ((16, 28, 1024, 512), (8, 128, 128, 64)):
        yield _square(batch, side, 2, before, after, stride=2, transposed=True)
    yield _square(16, 32, 4, 512, 256, stride=2, transposed=True)
    yield _square(16, 33, 3, 512, 256, dilation=12)


def _few_channels() -> Iterator[Shape]:
    """Few channels, of images or results, at batches that fill the columns of the array."""
    yield _square(128, 224, 7, 3, 64, stride=2, first=True)
    for side, window, before, after in (
        *((112, 5, 8, 32), (112, 3, 16, 16), (32, 3, 24, 24), (56, 3, 32, 32), (32, 5, 32, 32)),
        *((32, 5, 64, 64), (32, 3, 256, 8)),
    ):
        yield _square(256, side, window, before, after, first=True)
    yield _square(128, 64, 3, 320, 4, first=True)


FAMILIES = {
    "residual network": _residual_networks,
    "volume": _volumes,
    "diffusion": _diffusion,
    "weather": _weather,
    "speech": _speech,
    "patches": _patches,
    "grouped": _grouped,
    "detection": _detection,
    "few channels": _few_channels,
}


def shapes() -> Iterator[tuple[str, Shape]]:
    """Return each shape with its family."""
    for family, make in FAMILIES.items():
        for shape in make():
            yield family, shape
