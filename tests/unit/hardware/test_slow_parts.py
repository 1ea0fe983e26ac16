"""Slow chips, links and slices: what is written, printed and refused."""

import pickle
from typing import Any

import pytest

from tpusim.base import HardwareError
from tpusim.hardware import Slice, SlowChip, SlowLink, SlowParts

ALL = {
    "chips": [{"at": [0, 3, 5], "compute": 0.5, "hbm": 0.75}],
    "links": [{"between": [[7, 0, 0], [0, 0, 0]], "bandwidth": 0.5, "slice": 1}],
    "slices": [{"slice": 1, "compute": 0.9}],
}


def pod(**slow: Any) -> Slice:
    return Slice("v4", "8x16x16", num_slices=2, slow=slow)


def test_slow_parts_are_part_of_a_slice_and_print_with_it() -> None:
    assert str(pod(**ALL)) == (
        "v4:8x16x16 x 2 slices, slow: slice 1 compute x0.9; chip 0,3,5 compute x0.5 HBM x0.75; "
        "link 7,0,0 of slice 1 to 0,0,0 bandwidth x0.5"
    )
    assert pod(**ALL) != pod()
    assert pod(**ALL).healthy == pod() == Slice("v4", "8x16x16", num_slices=2)
    slow = {"chips": [{"at": [0, 0, 0], "compute": 0.5}]}
    for more in ({"clock": "1 GHz"}, {"twisted": True}, {"dcn_oversubscription": 2.0}):
        assert Slice("v4", "4x4x8", slow=slow, **more).healthy == Slice("v4", "4x4x8", **more)
    assert pickle.loads(pickle.dumps(pod(**ALL))) == pod(**ALL)
    assert hash(pod(**ALL)) == hash(pod(**ALL))


def test_many_slow_parts_are_counted() -> None:
    chips = [{"at": [0, 0, z], "compute": 0.5} for z in range(9)]
    assert str(pod(chips=chips)).endswith("chip 0,0,3 compute x0.5; 5 more")


def test_what_is_written_reads_back() -> None:
    slow = pod(**ALL).slow
    assert slow == pod(**slow.written).slow == Slice("v4", "8x16x16", 2, slow=slow).slow
    assert slow.chips == (SlowChip((0, 3, 5), 0.5, 0.75),)
    assert slow.links == (SlowLink(((7, 0, 0), (0, 0, 0)), 0.5, 1),)
    assert not SlowParts()
    assert pod(chips=[]) == pod()


def test_a_chip_of_a_slow_slice_has_the_product_of_both_shares() -> None:
    slow = pod(chips=[{"at": [0, 0, 0], "slice": 1, "compute": 0.5}], slices=ALL["slices"]).slow
    assert slow.speeds((0, 0, 0), 1) == (0.45, 1.0)
    assert slow.speeds((0, 0, 0), 0) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("slow", "message"),
    [
        (0.5, "slow is 0.5; write a table of lists, such as chips = "),
        ({"chip": []}, "slow has no 'chip'; did you mean 'chips'"),
        ({"chips": {"at": [0, 0, 0]}}, "slow.chips is {'at': .*; write a list, such as "),
        ({"chips": [5]}, r"slow.chips\[0\] is 5; write \{ at = "),
        ({"chips": [{"compute": 0.5}]}, r"slow.chips\[0\] has no 'at'; write \{ at = "),
        ({"chips": [{"at": [0, 0, 0], "hbn": 1}]}, r"slow.chips\[0\] has no 'hbn'; .*hbm"),
        ({"chips": [{"at": [0, 0, 0]}]}, r"slow.chips\[0\] is as fast as any other; write the "),
        ({"chips": [{"at": [0, 0], "hbm": 0.5}]}, r"\[0, 0\], which is no chip of 8x16x16; write"),
        ({"chips": [{"at": [8, 0, 0], "hbm": 0.5}]}, r"no chip of 8x16x16; .* to \[7, 15, 15\]"),
        ({"chips": [{"at": "0,0,0", "hbm": 0.5}]}, "write the coordinates of a chip, such as"),
        ({"chips": [{"at": [0, 0, 0], "hbm": 0}]}, r"slow.chips\[0\].hbm is 0; write the share"),
        ({"chips": [{"at": [0, 0, 0], "hbm": 1.5}]}, "hbm is 1.5; write the share that is left"),
        ({"chips": [{"at": [0, 0, 0], "hbm": "half"}]}, "hbm is 'half'; write the share"),
        ({"chips": [{"at": [0, 0, 0], "slice": 2, "hbm": 0.5}]}, "slice is 2, and .* 0 to 1"),
        ({"chips": [{"at": [0, 0, 0], "slice": "1", "hbm": 0.5}]}, "write the number of a slice"),
        (
            {"chips": [{"at": [0, 0, 0], "hbm": 0.5}, {"at": [0, 0, 0], "compute": 0.5}]},
            r"slow.chips\[1\] is chip 0,0,0 compute x0.5, which the list has already; write each",
        ),
        ({"links": [{"between": [[0, 0, 0]], "bandwidth": 0.5}]}, "write two neighbours, as in"),
        (
            {"links": [{"between": [[0, 0, 0], [0, 2, 0]], "bandwidth": 0.5}]},
            r"\[0, 0, 0\] and \[0, 2, 0\], which no link joins; write a neighbour of \[0, 0, 0\]",
        ),
        ({"links": [{"between": [[0, 0, 0], [0, 1, 0]]}]}, "has no 'bandwidth'; write"),
        (
            {
                "links": [
                    {"between": [[0, 0, 0], [0, 1, 0]], "bandwidth": 0.5},
                    {"between": [[0, 1, 0], [0, 0, 0]], "bandwidth": 0.5},
                ]
            },
            r"slow.links\[1\] is link 0,1,0 to 0,0,0 .* already",
        ),
        ({"slices": [{"slice": 5, "compute": 0.5}]}, "slice is 5, and the machine has 2 slices"),
        ({"slices": [{"slice": 1}]}, "is as fast as any other; .* of its compute or hbm"),
    ],
)
def test_a_mistake_is_one_sentence(slow: Any, message: str) -> None:
    with pytest.raises(HardwareError, match=message) as caught:
        Slice("v4", "8x16x16", num_slices=2, slow=slow)
    assert "\n" not in str(caught.value)
