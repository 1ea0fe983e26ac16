"""Laws of systems of images: no FLOP is lost or made, however batch and height are sharded."""

from dataclasses import fields
from fractions import Fraction
from math import prod

import pytest
from accounts import total_flops
from extent import sample
from small_models import small_metnet2

import tpusim as ts
from tpusim.models import Architecture, DiffusionUNet, MaskRCNN, ResNet, UNet3d
from tpusim.program import Compute, ConvolutionWork, Flops, MatmulWork, Program, Work, walk_ops

MODELS: tuple[Architecture, ...] = (
    ResNet(name="resnet", blocks=(2, 1, 1, 1), image=64, space_to_depth=True),
    DiffusionUNet(
        name="diffusion", channels=(64, 128), blocks=1, attention_levels=1, latent=16, text_embed=64
    ),
    UNet3d(name="volumes", patch=16, filters=(8, 16, 32)),
    MaskRCNN(name="mask", image=(128, 192), rois=16, mask_rois=8),
    small_metnet2(),
)
MESHES = ({"data": 4}, {"fsdp": 4}, {"data": 2, "space": 2}, {"data": 1, "space": 4})


def plan_of(mesh: dict[str, int]) -> ts.Plan:
    rules = {"act_height": "space"} if "space" in mesh else {}
    return ts.Plan(mesh=mesh, global_batch=8, rules=rules, optimizer="lars")


def local_flops(work: Work) -> Fraction:
    """Matrix FLOPs of one device, from shapes alone."""
    match work:
        case MatmulWork():
            return 2 * prod(Fraction(n) for n in (work.batch, work.m, work.k, work.n))
        case ConvolutionWork():
            return Fraction(work.flops)
    return Fraction(0)


def executed(program: Program) -> Fraction:
    ops = walk_ops(program.body, program.segments)
    local = sum(n * local_flops(op.work) for op, n in ops if isinstance(op, Compute))
    return local * program.devices


@pytest.mark.parametrize("model", sample(MODELS, 2), ids=lambda model: model.name)
@pytest.mark.parametrize("mesh", sample(MESHES, 4), ids=str)
def test_flops_are_conserved(model: Architecture, mesh: dict[str, int]) -> None:
    result = ts.simulate(model, plan_of(mesh), ts.Slice("v4", "2x2x1"))
    counted = total_flops(result.program.body)
    whole = sum(Fraction(getattr(counted, field.name)) for field in fields(Flops))
    assert executed(result.program) == whole
    assert counted.recompute == 0
    alone = ts.simulate(model, ts.Plan(mesh={"data": 1}, global_batch=8), ts.Slice("v5e", "1x1"))
    assert counted.model == total_flops(alone.program.body).model
