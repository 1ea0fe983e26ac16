"""The schedules by name, and a sentence for those that cannot be."""

import pytest
from inputs import SLOT_SCHEDULES

from tpusim.base import PlanError
from tpusim.plan import make_schedule
from tpusim.program import PassKind


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("1f2b", 4, 8), "schedule='1f2b' is no schedule of a pipeline; did you mean '1f1b'?"),
        (("1f1b", 0, 8), "a pipeline cannot have 0 stages; give at least 1"),
        (("gpipe", 4, 0), "a pipeline cannot have 0 microbatches; give at least 1"),
        (("interleaved", 4, 8, 0), "a pipeline cannot have 0 chunks; give at least 1"),
        (("interleaved", 4, 6, 2), "plan.microbatches is 6, but the schedule interleaved"),
        (("zb-h1", 4, 3), "too few for the schedule zb-h1 to fill 4 stages; write at least 4, or"),
        (("zb-h2", 4, 6), "too few for the schedule zb-h2 to fill 4 stages; write at least 7, or"),
        (("gpipe", 4, 8, 2), "has one chunk per stage, not 2; take schedule=\"interleaved\""),
    ],
)  # fmt: skip
def test_what_cannot_be_scheduled(given: tuple[str, int, int], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence.replace("?", r"\?")):
        make_schedule(*given)


@pytest.mark.parametrize("name", SLOT_SCHEDULES)
def test_each_stage_has_each_pass_of_each_microbatch_once(name: str) -> None:
    chunks = 3 if name == "interleaved" else 1
    schedule = make_schedule(name, 4, 8, chunks)
    kinds = list(PassKind) if schedule.splits else [PassKind.FORWARD, PassKind.BACKWARD]
    for slots in schedule.slots:
        assert len(set(slots)) == len(slots) == 8 * chunks * len(kinds)
        assert {slot.kind for slot in slots} == set(kinds)
