"""Published runs of convolution networks as plans: predicted beside measured.

python drafts_conv.py [part of a name ...]

Measured steps are of the table that `source` names; those of MLPerf include what evaluation its
logging blocks hold. Batch norms are of single devices where a device has 16 examples or more, as
MLPerf's are of few devices; `batch` sums over all of them.
"""

import sys
from typing import NamedTuple

import tpusim as ts
from tpusim.models import Architecture
from tpusim.models.detectors import SSD, MaskRCNN
from tpusim.models.diffusion_unet import DiffusionUNet
from tpusim.models.resnet import ResNet
from tpusim.models.unet3d import UNet3d


class Row(NamedTuple):
    """A published run: the model, its plan and slice, and the measured seconds of a step."""

    model: Architecture
    plan: ts.Plan
    pod: ts.Slice
    measured_s: float


RESNET = ResNet.published("resnet-50", norm="device", space_to_depth=True)
HAIKU = ResNet.published("resnet-50", norm="device")
BIT = ResNet.published("bit-r50x1")
SSD_300 = SSD(norm="device", space_to_depth=True)
SMALL_SSD = SSD(space_to_depth=True)
MASK = MaskRCNN()
DIFFUSION = DiffusionUNet.published("stable-diffusion-v2-base")


def row(model, slice_, batch, measured_s, optimizer="momentum", space=1):
    """Return a row of data parallelism; `space` devices share the height of an image.

    They share the regions of the box head of Mask R-CNN too.
    """
    chip, _, shape = slice_.partition(":")
    pod = ts.Slice(chip, shape)
    mesh = {"data": pod.devices // space}
    rules = {}
    if space > 1:
        mesh["space"], rules["act_height"] = space, "space"
        rules |= {"act_rois": "space"} if isinstance(model, MaskRCNN) else {}
    plan = ts.Plan(mesh=mesh, global_batch=batch, optimizer=optimizer, rules=rules)
    return Row(model, plan, pod, measured_s)


ROWS = {
    "mlperf06-resnet-v3-16": row(RESNET, "v3:4x4", 4096, 0.13109, "lars"),
    "mlperf06-resnet-v3-256": row(RESNET, "v3:16x16", 32768, 0.07901, "lars"),
    "mlperf07-resnet-v4-64": row(RESNET, "v4:4x4x4", 8192, 0.03907, "lars"),
    "mlperf10-resnet-v4-2048": row(RESNET, "v4:8x16x16", 32768, 0.0069, "lars"),
    "haiku-resnet50-v3-bf16": row(HAIKU, "v3:4x4", 8192, 8192 / 32571),
    "bigvision-bit-r50-v3-128": row(BIT, "v3:8x8", 4096, 0.068),
    "mlperf10-unet3d-v4-64": row(UNet3d(), "v4:4x4x4", 32, 0.11206, space=2),
    "mlperf-v4.1-sd-v5p-8": row(DIFFUSION, "v5p:2x2x2", 256, 0.37022, "adam"),
    "mlperf-v4.1-sd-v5p-512": row(DIFFUSION, "v5p:8x8x8", 1024, 0.06606, "adam"),
    "mlperf-v5.0-sd-v6e-256": row(DIFFUSION, "v6e:16x16", 1024, 0.09235, "adam"),
    "ssd-v0.7-v4-16": row(SSD_300, "v4:2x2x2", 1024, 0.08938),
    "ssd-v0.7-v4-512": row(SMALL_SSD, "v4:4x8x8", 2048, 0.01389),
    "ssd-v1.0-v4-128": row(SSD_300, "v4:4x4x4", 1024, 0.01382),
    "ssd-v0.6-v3-32": row(SSD_300, "v3:4x4", 1024, 0.117),
    "ssd-v0.6-v3-128": row(SMALL_SSD, "v3:8x8", 1024, 0.0356),
    "ssd-v0.6-v3-512": row(SMALL_SSD, "v3:16x16", 2048, 0.0243),
    "ssd-v0.6-v3-2048": row(SMALL_SSD, "v3:32x32", 2048, 0.0139),
    "maskrcnn-v0.7-v4-16": row(MASK, "v4:2x2x2", 128, 0.43326),
    "maskrcnn-v0.7-v4-512": row(MASK, "v4:4x8x8", 256, 0.02533),
    "maskrcnn-v1.0-v4-128": row(MASK, "v4:4x4x4", 256, 0.09526),
    "maskrcnn-v2.0-v4-2048": row(MASK, "v4:8x8x16", 256, 0.00663, space=4),
    "maskrcnn-v0.6-v3-32": row(MASK, "v3:4x4", 128, 0.4568),
    "maskrcnn-v0.6-v3-256": row(MASK, "v3:8x16", 128, 0.15, space=2),
}
"""Rows by the names of published_systems.csv and vision_runs.csv."""


def main():
    """Print predicted and measured milliseconds of the rows whose names are asked for."""
    for name, (model, plan, pod, measured) in ROWS.items():
        if sys.argv[1:] and not any(part in name for part in sys.argv[1:]):
            continue
        predicted = ts.simulate(model, plan, pod).step_time_s
        print(
            f"{name:26} {pod!s:12} {1e3 * predicted:8.2f} ms, measured {1e3 * measured:8.2f} ms "
            f"({predicted / measured - 1:+.0%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
