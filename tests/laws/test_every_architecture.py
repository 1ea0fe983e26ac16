"""Random plans of every architecture are simulated, or refused with a sentence, and bounded."""

import random
from collections import Counter

import pytest
from bounded import bound_and_operations, operations_below
from extent import sample, seeds, thorough
from many_architectures import AnyCase, any_model, any_plan
from test_any_plan import obeys

from tpusim.base import TpusimError
from tpusim.bounds import bound
from tpusim.hardware import Slice
from tpusim.models import ARCHITECTURES, Gnmt, JointTransformer, ResNet, UNet3d
from tpusim.plan import Plan
from tpusim.results import Result
from tpusim.searches import PlanSpace, search
from tpusim.simulation import simulate

BLOCK = 50
"""Plans of one test."""

BLOCKS = 134
"""Thorough tests, of whose 6,700 plans three of four are simulated: 5,000."""

FIRST = len(ARCHITECTURES) // 2
"""Plans by default: one of each second architecture."""

LONGEST_SENTENCE = 400


def simulated(case: AnyCase, refused: Counter[str]) -> Result | None:
    """Simulate a plan; None if it is refused, with one sentence of ours."""
    try:
        return simulate(*case)
    except TpusimError as error:
        said = str(error)
        assert said.isprintable()
        assert 20 < len(said) < LONGEST_SENTENCE
        refused[said] += 1
        return None


@pytest.mark.parametrize(
    "plans",
    [range(FIRST), *(thorough(range(BLOCK * at, BLOCK * (at + 1))) for at in range(BLOCKS))],
    ids=str,
)
def test_random_plans_of_every_architecture_obey_the_laws(plans: range) -> None:
    refused: Counter[str] = Counter()
    for seed in plans:
        case = any_plan(seed)
        result = simulated(case, refused)
        if result is not None:
            obeys(result)
            assert str(result)
            least, operations = bound_and_operations(*case)
            assert 0 < least <= result.step_time_s, seed
            assert not operations_below(operations, result), seed
    print(f"{len(plans) - refused.total()} plans simulated, {refused.total()} refused:")
    print(*(f"{count} x {said}" for said, count in refused.most_common()), sep="\n")
    assert refused.total() < len(plans) / 2


@pytest.mark.parametrize("seed", seeds(60, default=2))
def test_a_random_plan_of_any_architecture_is_the_same_unfolded(seed: int) -> None:
    case = any_plan(seed)
    folded = simulated(case, Counter())
    if folded is not None:
        unfolded = simulate(*case, fold=False)
        assert folded.timeline.total_ps == unfolded.timeline.total_ps
        assert folded.hbm_peak_bytes == unfolded.hbm_peak_bytes


@pytest.mark.parametrize("scanned", [True, False])
def test_a_joint_transformer_may_end_with_double_layers(scanned: bool) -> None:
    model = JointTransformer(
        double_layers=2, heads=2, head_dim=16, latent=32, text=16, scanned=scanned
    )
    assert simulate(model, Plan(mesh={"data": 8}, global_batch=8), "v5e:2x4").step_time_s > 0


def level_on_the_axis_of_the_height(seed: int) -> AnyCase:
    """Return a net one of whose levels has its channels on the axis that shards the height."""
    model = (ResNet.published("resnet-50"), UNet3d(), ResNet(bottleneck=False))[seed % 3]
    axis = ("space", "tensor")[seed % 2]
    mesh = {"data": 4, axis: 4} if seed % 4 else {axis: 4, "data": 4}
    level = (32, 64, 128, 256)[seed % 4]
    rules = {"act_height": axis, f"{level}.act_channels": axis}
    return model, Plan(mesh=mesh, global_batch=32, rules=rules), Slice("v6e", "4x4")


@pytest.mark.parametrize("seed", seeds(12))
def test_height_and_channels_may_have_one_axis(seed: int) -> None:
    result = simulated(level_on_the_axis_of_the_height(seed), Counter())
    if result is not None:
        obeys(result)


def test_a_kernels_gradient_follows_the_gather_of_what_it_reads() -> None:
    """Channels of one level are gathered for it, after the halos of the height are on their way."""
    model = ResNet(blocks=(1, 1, 1, 1), bottleneck=False, width=8, image=64, preactivation=True)
    rules = {"act_height": "context", "8.act_channels": "other", "64.channels": "other"}
    plan = Plan(mesh={"other": 8, "context": 2}, global_batch=16, rules=rules)
    names = [op.name for op in simulate(model, plan, "v6e:4x4").program.body]
    gather = next(name for name in names if name.startswith("all-gather/d(0.0/out)@other"))
    assert names.index(gather) < names.index("0.0/b/dw")


def test_a_recurrence_begins_when_its_input_has_been_scattered() -> None:
    model = Gnmt(layers=2, decoder_layers=2, units=64, vocab=100)
    plan = Plan(mesh={"other": 16}, seq_len=1, global_batch=16, rules={"act_embed": "other"})
    obeys(simulate(model, plan, "7x:2x2x2"))


@pytest.mark.parametrize("architecture", sample(ARCHITECTURES, 3))
def test_one_stage_is_bounded_as_none(architecture: str) -> None:
    """Also of models that cannot be cut; a search of both leaves the stages out."""
    model = any_model(random.Random(0), architecture)
    plan = Plan(mesh={"data": 4}, seq_len=64 * model.reads_text, global_batch=16)
    staged = plan.replace(mesh={"data": 4, "stage": 1})
    assert bound(model, staged, "v4:2x2x1") == bound(model, plan, "v4:2x2x1")


def test_a_search_leaves_out_stages_of_a_model_that_cannot_be_cut() -> None:
    base = Plan(mesh={"data": 1}, global_batch=16)
    space = PlanSpace(base=base, slices=[Slice("v4", "2x2x1")], axes=("data", "stage"))
    found = search(ResNet(blocks=(1, 1, 1, 1), image=64, width=8), space)
    assert [each.plan.mesh for each in found.best] == [{"data": 4, "stage": 1}]


@pytest.mark.parametrize("seed", [324, 1875, 2494])
def test_no_operation_of_a_plan_that_was_once_too_fast_is_below_its_bound(seed: int) -> None:
    """Weights quantised from f32, uses of an embedding in two stages, copies of one name."""
    case = any_plan(seed)
    least, operations = bound_and_operations(*case)
    result = simulate(*case)
    assert 0 < least <= result.step_time_s
    assert not operations_below(operations, result)
