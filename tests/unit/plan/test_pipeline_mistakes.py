"""A pipeline that cannot be gets one sentence: what was found, and what to write instead."""

from typing import Any

import pytest
from plans import plan_of, small

from tpusim.base import PlanError
from tpusim.hardware import Slice
from tpusim.simulation import simulate

POD = Slice("v5e", "4x4")
MESH = {"stage": 4, "fsdp": 4}
AXIS = "but no axis of the mesh has stages; write one, such as stage = 4"
INSIDE = ("which cuts the model between its layers and shards nothing inside of a stage; write "
          "another axis, or leave it out")  # fmt: skip

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"layers": 3}, "the mesh has 4 stages, but transformer has 3 layers, and each needs one; "
     "write at most 3 stages"),
    ({"schedule": "interleaved", "virtual_stages": 4}, "the mesh has 4 stages x 4 virtual stages, "
     "but transformer has 8 layers, and each needs one; write virtual_stages = 2 at most"),
    ({"layers": 10}, "transformer has 10 layers, which 4 stages cannot share equally; write how "
     "many each has, such as stage_layers = [3, 3, 2, 2]"),
    ({"layers": 12, "schedule": "circular", "virtual_stages": 2}, "transformer has 12 layers, "
     "which 4 stages x 2 virtual stages cannot share equally; write numbers whose product divides "
     "12, as one program runs all stages, or another schedule with stage_layers"),
    ({"stage_layers": [4, 4]}, "plan.stage_layers has 2 numbers, but there are 4 stages; write one "
     "for each"),
    ({"stage_layers": [8]}, "plan.stage_layers has 1 number, but there are 4 stages; write one for "
     "each"),
    ({"rules": {"embed": "stage"}}, f"plan.rules.embed shards over 'stage', {INSIDE}"),
    ({"annotate": {"layer/q": ["fsdp", ["stage"], None, None]}},
     f"plan.annotate.layer/q shards over 'stage', {INSIDE}"),
    ({"stage_layers": [3, 2, 2, 2]}, "plan.stage_layers adds up to 9 layers, but the model has 8; "
     "write numbers that add up to 8"),
    ({"stage_layers": [8, 0, 0, 0]}, "plan.stage_layers[1] is 0; it must be a whole number of at "
     "least 1"),
    ({"stage_layers": "2222"}, "plan.stage_layers is '2222'; write a list of whole numbers, such "
     "as [16, 16, 15]"),
    ({"schedule": "circular", "stage_layers": [3, 1, 2, 2]}, "plan.stage_layers is [3, 1, 2, 2], "
     "but one program runs all stages of a circular pipeline; write equal numbers for the 4 parts "
     "of a round, or another schedule"),
    ({"schedule": "1f1"}, "plan.schedule is '1f1': did you mean '1f1b'?"),
    ({"schedule": "interleaved"}, "plan.schedule is 'interleaved', but plan.virtual_stages is 1, "
     "so there is nothing to interleave; write virtual_stages = 2 or more, or schedule = '1f1b'"),
    ({"virtual_stages": 2}, "plan.virtual_stages is 2, but the schedule 1f1b has one part of the "
     "model per stage; write schedule = 'interleaved' or 'circular', or leave it out"),
    ({"schedule": "interleaved", "virtual_stages": 2, "microbatches": 2}, "plan.microbatches "
     "is 2, but the schedule interleaved takes them in rounds of as many as there are stages; "
     "write a multiple of 4"),
    ({"schedule": "zb-h1", "microbatches": 2}, "plan.microbatches is 2, too few for the "
     "schedule zb-h1 to fill 4 stages; write at least 4, or schedule = '1f1b'"),
    ({"schedule": "circular", "virtual_stages": 2, "microbatches": 2}, "plan.microbatches is 2, "
     "too few for a circular pipeline of 4 stages x 2 virtual stages; write at least 4"),
    ({"schedule": "zb-h1", "offload": ["layer_in"]}, "plan.offload is ['layer_in'], but the "
     "schedule zb-h1 keeps what weight gradients read in HBM until it makes them; leave it out, or "
     "write schedule = '1f1b'"),
    ({"schedule": "gpipe", "mesh": {"fsdp": 16}}, f"plan.schedule is 'gpipe', {AXIS}"),
    ({"stage_layers": [4, 4], "mesh": {"fsdp": 16}}, f"plan.stage_layers is [4, 4], {AXIS}"),
    ({"window": 8, "global_every": 4, "schedule": "circular"}, "the layers of transformer are not "
     "alike from one part of 2 to the next, but one program runs all stages of a circular "
     "pipeline; choose virtual_stages and stage_layers by which the 4 parts of a round are alike, "
     "or another schedule"),
]  # fmt: skip
MODEL = ("layers", "window", "global_every")


@pytest.mark.parametrize(("changes", "sentence"), MISTAKES)
def test_a_pipeline_that_cannot_be_is_told_in_a_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    model = small(**{"layers": 8} | {key: changes[key] for key in MODEL if key in changes})
    given = {"mesh": MESH, "microbatches": 8} | changes
    with pytest.raises(PlanError) as told:
        simulate(model, plan_of(**{k: v for k, v in given.items() if k not in MODEL}), POD)
    assert str(told.value) == sentence


def test_hops_follow_the_messages_of_one_program() -> None:
    plan = plan_of(MESH, microbatches=8)
    with pytest.raises(PlanError, match='network = "hops" follows the messages of one program'):
        simulate(small(layers=8), plan, POD, network="hops")
