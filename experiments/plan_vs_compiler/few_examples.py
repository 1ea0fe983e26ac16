"""The designed sample of few examples a device: images that the compiler cuts into the batch.

Below eight examples a device, and beside them eight, of volumes and of images, with statistics of
each example, of groups and of the batch, on six generations. A twin is a row of `SYSTEMS`, numbered
as in `systems.py`.
"""

from collections.abc import Iterator, Mapping

import systems
from sample import Twin
from systems import System

_MOMENTUM = {"optimizer": "momentum", "remat": "none"}
_HEIGHT = {**_MOMENTUM, "rules": {"act_height": "spatial"}}
_PLAIN = {"remat": "none"}
_HALVES, _QUARTERS = {"data": 2, "spatial": 2}, {"data": 4, "spatial": 2}
_FILTERS, _DEEP = {"filters": (32, 64)}, {"filters": (32, 64, 128, 256)}

SYSTEMS: Mapping[str, System] = {
    "3-D U-Net, sharded": System(
        {"architecture": "unet3d", "patch": 64, "filters": (32, 64, 128)},
        (
            ("v4:2x2x2", _QUARTERS, 4, _HEIGHT, {"patch": 96, **_DEEP}),
            ("v5p:2x2x2", _QUARTERS, 8, _HEIGHT, {"patch": 96, **_DEEP}),
            ("v5e:2x4", _QUARTERS, 12, _HEIGHT, _DEEP),
            ("v3:2x2", _QUARTERS, 4, _HEIGHT, {"patch": 96}),
            ("v4:2x2x1", _HALVES, 4, _HEIGHT, {}),
            ("v4:2x2x1", _HALVES, 8, _HEIGHT, {}),
            ("v6e:2x2", _HALVES, 2, _HEIGHT, {}),
            ("v6e:2x2", _HALVES, 8, _HEIGHT, {}),
            ("v3:2x2", _QUARTERS, 8, _HEIGHT, {}),
        ),
    ),
    "3-D U-Net": System(
        {"architecture": "unet3d", "patch": 64, "filters": (32, 64, 128)},
        (
            ("v6e:2x4", {"data": 8}, 8, _MOMENTUM, {"patch": 128, "filters": (16, 32, 64)}),
            ("v4:2x2x1", {"data": 4}, 16, _MOMENTUM, {"patch": 80, **_FILTERS}),
            ("v3:2x2", {"data": 8}, 8, _MOMENTUM, {}),
            ("v3:2x2", {"data": 8}, 24, _MOMENTUM, _FILTERS),
            ("v5e:2x2", {"data": 4}, 4, _MOMENTUM, {}),
            ("v5p:2x2x1", {"data": 4}, 8, _MOMENTUM, {}),
            ("v2:2x2", {"data": 8}, 16, _MOMENTUM, {}),
            ("v4:2x2x1", {"data": 4}, 28, _MOMENTUM, {}),
            ("v6e:2x2", {"data": 4}, 32, _MOMENTUM, {}),
        ),
    ),
    "diffusion U-Net": System(
        {
            "name": "stable-diffusion-v2-base", "channels": (320, 640), "blocks": 1,
            "attention_levels": 1,
        },
        (
            ("v5p:2x2x1", {"data": 4}, 8, _PLAIN, {"channels": (320, 640, 1280)}),
            ("v6e:2x2", {"data": 4}, 12, _PLAIN, {"channels": (256, 512)}),
            ("v4:2x2x1", {"data": 4}, 16, _PLAIN, {"channels": (256, 512)}),
            ("v3:2x2", {"data": 8}, 8, _PLAIN, {}),
            ("v5e:2x2", {"data": 4}, 4, _PLAIN, {}),
            ("v6e:2x2", {"data": 4}, 8, _PLAIN, {}),
            ("v4:2x2x1", {"data": 4}, 4, _PLAIN, {}),
            ("v4:2x2x1", {"data": 4}, 32, _PLAIN, {}),
        ),
    ),
    "ResNet": System(
        {"name": "resnet-50", "blocks": (1, 1, 1, 1)},
        (
            ("v5p:2x2x1", {"data": 4}, 16, _MOMENTUM, {}),
            ("v6e:2x2", {"data": 4}, 8, _MOMENTUM, {}),
            ("v5e:2x2", {"data": 4}, 16, _MOMENTUM, {}),
            ("v3:2x2", {"data": 8}, 32, _MOMENTUM, {}),
            ("v3:2x2", {"data": 8}, 64, _MOMENTUM, {}),
        ),
    ),
}  # fmt: skip
"""Systems with convolutions, small enough to compile in half a minute."""


def numbers() -> Iterator[int]:
    """Return the numbers of all twins, the first of each system before the second."""
    return systems.numbers_of(SYSTEMS)


def draw(number: int) -> Twin:
    """Return twin `number`."""
    return systems.drawn(SYSTEMS, number)
