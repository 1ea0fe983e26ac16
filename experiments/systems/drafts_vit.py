"""Measured runs of vision transformers beside their plans.

ViT-S/16 of big_vision on 8 cores of v3 (`configs/vit_s16_i1k.py`): 90 epochs of 99 % of
ImageNet-1k in 6 to 7 hours, with evaluations and input, so 0.19 s to 0.23 s are above the step.
Its code has f32 weights and activations, a loop over layers in Python and no checkpoints.

    python experiments/systems/drafts_vit.py
"""

import tpusim as ts
from tpusim.models import VisionTransformer

RUNS = {
    "bigvision-vit-s16-v3-8": (
        VisionTransformer.from_name(
            "s/16", pool="mean", positions=False, representation=True, scanned=False
        ),
        ts.Plan(
            mesh={"data": 8},
            global_batch=1024,
            dtype="f32",
            grad_dtype="f32",
            moment_dtype="bf16",
            second_moment_dtype="f32",
            remat="none",
        ),
        ts.Slice("v3", "2x2"),
        (0.194, 0.226),
    ),
}
"""By id: the model, its plan, its slice, and the seconds of a step: 21600 s and 25200 s over 111476
steps."""

LEFT_OUT = {
    "siglit-4xv4": "the batch, the number of steps and the towers are not in what was read",
}
"""Rows that give no step time."""


def main() -> None:
    """Print each run's predicted and measured step."""
    for name, (model, plan, pod, (least, most)) in RUNS.items():
        made = ts.simulate(model, plan, pod).step_time_s
        print(f"{name}: {made:.3f} s; measured, with evaluations, {least:.3f} s to {most:.3f} s")


if __name__ == "__main__":
    main()
