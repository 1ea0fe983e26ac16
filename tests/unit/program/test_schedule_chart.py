"""A schedule printed as a chart, timed without an engine, and what it says when it is stuck."""

import pytest
from pipelines import kinds
from schedules import StuckError, TimedSlot, chart, slot_times

from tpusim.plan import make_schedule
from tpusim.program import PassKind, Schedule, Slot

CHARTS = """\
gpipe: 4 stages, 8 microbatches, 27.3% bubble
  0  F0F1F2F3F4F5F6F7. . . . . . . . . B7- B6- B5- B4- B3- B2- B1- B0-
  1  . F0F1F2F3F4F5F6F7. . . . . . B7- B6- B5- B4- B3- B2- B1- B0- . .
  2  . . F0F1F2F3F4F5F6F7. . . B7- B6- B5- B4- B3- B2- B1- B0- . . . .
  3  . . . F0F1F2F3F4F5F6F7B7- B6- B5- B4- B3- B2- B1- B0- . . . . . .
1f1b: 4 stages, 8 microbatches, 27.3% bubble
  0  F0F1F2F3. . . . . . B0- F4B1- F5B2- F6B3- F7B4- . B5- . B6- . B7-
  1  . F0F1F2. . . . B0- F3B1- F4B2- F5B3- F6B4- F7B5- . B6- . B7- . .
  2  . . F0F1. . B0- F2B1- F3B2- F4B3- F5B4- F6B5- F7B6- . B7- . . . .
  3  . . . F0B0- F1B1- F2B2- F3B3- F4B4- F5B5- F6B6- F7B7- . . . . . .
interleaved: 4 stages, 2 chunks, 8 microbatches, 15.8% bubble
  0  F0  F1  F2  F3  F0.1F1.1F2.1F3.1F4  F5  F6  .   .   .   B0.1-   F7  B1.1-   .   F4.1B2.1-   F5…
  1  .   F0  F1  F2  F3  F0.1F1.1F2.1F3.1F4  .   .   B0.1-   F5  B1.1-   F6  B2.1-   F7  B3.1-   F4…
  2  .   .   F0  F1  F2  F3  F0.1F1.1F2.1.   B0.1-   F3.1B1.1-   F4  B2.1-   F5  B3.1-   F6  B0  - …
  3  .   .   .   F0  F1  F2  F3  F0.1B0.1-   F1.1B1.1-   F2.1B2.1-   F3.1B3.1-   F4  B0  -   F5  B1…
zb-h1: 4 stages, 8 microbatches, 11.1% bubble
  0  F0 F1 F2 F3 .  .  .  B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7
  1  .  F0 F1 F2 .  .  B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7
  2  .  .  F0 F1 .  B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7
  3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7
zb-h2: 4 stages, 8 microbatches, 11.1% bubble
  0  F0 F1 F2 F3 F4 F5 F6 B0 W0 F7 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5 B6 W6 B7 W7 .  .  .
  1  .  F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 W0 F7 B3 W1 B4 W2 B5 W3 B6 W4 B7 W5 W6 W7 .  .
  2  .  .  F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 W0 F7 B5 W1 B6 W2 B7 W3 W4 W5 W6 W7 .
  3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 W0 F7 B7 W1 W2 W3 W4 W5 W6 W7
"""


def test_charts() -> None:
    names = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1))
    charts = [chart(make_schedule(name, 4, 8, chunks)) for name, chunks in names]
    assert "\n".join(charts) + "\n" == CHARTS


def test_a_chart_is_cut_where_it_is_too_wide() -> None:
    head, *rows = chart(make_schedule("1f1b", 2, 64)).split("\n")
    assert head == "1f1b: 2 stages, 64 microbatches, 1.5% bubble"
    assert [len(row) for row in rows] == [100, 100]
    assert all(row.endswith("…") for row in rows)


def test_slots_stand_apart_where_there_is_room() -> None:
    assert chart(make_schedule("gpipe", 2, 2)).split("\n")[1:] == [
        "  0  F0 F1 .  .  .  B1 -  B0 -",
        "  1  .  F0 F1 B1 -  B0 -  .  .",
    ]


def test_a_schedule_is_timed_by_hand() -> None:
    """Two stages, one microbatch: 10 forward, 3 on the way, 10 forward, 20 back, 5, 20."""
    travels = {PassKind.FORWARD: 3, PassKind.BACKWARD: 5}
    spans = slot_times(
        make_schedule("1f1b", 2, 1), kinds(10, 20), lambda stage, slot: travels[slot.kind]
    )
    forward, backward = Slot(PassKind.FORWARD, 0), Slot(PassKind.BACKWARD, 0)
    assert spans == (
        TimedSlot(0, forward, 0, 10), TimedSlot(0, backward, 48, 68),
        TimedSlot(1, forward, 13, 23), TimedSlot(1, backward, 23, 43),
    )  # fmt: skip


def test_a_schedule_that_is_stuck_names_its_slots() -> None:
    good = make_schedule("1f1b", 2, 2)
    stuck = Schedule("mine", 2, 1, (good.slots[0][::-1], good.slots[1]))
    with pytest.raises(StuckError, match="'mine' comes to a halt: stage 0 before B1, stage 1"):
        slot_times(stuck, kinds(1, 2))


def test_operands_of_chunks() -> None:
    """Part 2 of 4 is chunk 1 of stage 0: it is fed by stage 1, whose chunk 0 is part 1."""
    schedule = make_schedule("interleaved", 2, 2, 2)
    forward, backward = Slot(PassKind.FORWARD, 1, 1), Slot(PassKind.BACKWARD, 1, 1)
    assert schedule.operands(0, forward) == ((1, Slot(PassKind.FORWARD, 1, 0)),)
    assert schedule.operands(0, backward) == ((0, forward), (1, backward))
    assert schedule.operands(1, backward) == ((1, forward),)
    assert schedule.operands(0, Slot(PassKind.FORWARD, 1, 0)) == ()
