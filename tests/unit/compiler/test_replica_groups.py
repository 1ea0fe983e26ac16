"""Replica groups and pairs in every form that HLO writes them."""

import functools
import operator
from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.base import FileError
from tpusim.compiler.hlo.replica_groups import ReplicaGroups, read_groups

GLOBAL = "channel_id=1, replica_groups={}, use_global_device_ids=true"


def ids(groups: str, devices: int = 8, opcode: str = "all-gather") -> list[list[int]]:
    return read(GLOBAL.replace("{}", groups), opcode, devices).ids.tolist()


def read(text: str, opcode: str, devices: int, replicas: int = 1) -> ReplicaGroups:
    found = read_groups(text, opcode, devices, replicas)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("{{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("{{0,2,4,6},{1,3,5,7}}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("[2,4]<=[2,2,2]T(2,1,0)", [[0, 4, 2, 6], [1, 5, 3, 7]]),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("mesh['a'=2,'b'=1,'c'=4] {'b','a'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("mesh['a'=2,'b'=4] {'a','b':(2)2}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['a'=8] {'a':(1)2,'a':(4)2}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (
            "mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0'}",
            [[0, 1], [2, 3], [4, 5], [6, 7]],
        ),
        ("mesh['a'=2,'b'=2], device_ids=([0,2,1,3]) {'b'}", [[0, 2], [1, 3]]),
        ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ],
)
def test_the_forms_of_groups(written: str, meant: list[list[int]]) -> None:
    assert ids(written) == meant


def test_parts_of_an_axis_of_a_transposed_mesh() -> None:
    """A part of 32 of 480B's batch axis on v4 8x16x16, as the compiler writes it."""
    mesh = "mesh['axis_0'=256,'axis_1'=1,'axis_2'=8], device_ids=([8,32,8]T(2,1,0))"
    found = ids(mesh + " {'axis_0':(8)32}", 2048)
    assert found[0] == list(range(0, 256, 8))
    assert sorted(functools.reduce(operator.iadd, found, [])) == list(range(2048))


@pytest.mark.parametrize(
    ("opcode", "text", "meant"),
    [
        # Of 2 replicas x 2 partitions, device = 2 x replica + partition.
        ("all-reduce", "replica_groups={{0,1}}", [[0, 2], [1, 3]]),
        ("all-reduce", "replica_groups={}", [[0, 2], [1, 3]]),
        ("all-reduce", "channel_id=3, replica_groups={{0},{1}}", [[0, 1], [2, 3]]),
        ("all-reduce", "channel_id=3, replica_groups={}", [[0, 1, 2, 3]]),
        ("all-to-all", "channel_id=3, replica_groups={{0,1}}", [[0, 1], [2, 3]]),
        ("collective-permute", "channel_id=3, source_target_pairs={{0,1}}", [[0, 1], [2, 3]]),
        ("collective-permute", "source_target_pairs={{0,1}}", [[0, 2], [1, 3]]),
        (
            "all-gather",
            "channel_id=3, replica_groups={{0,3},{1,2}}, use_global_device_ids=true",
            [[0, 3], [1, 2]],
        ),
    ],
)
def test_what_ids_stand_for(opcode: str, text: str, meant: list[list[int]]) -> None:
    assert read(text, opcode, devices=4, replicas=2).ids.tolist() == meant


def test_pairs_are_no_groups() -> None:
    found = read("channel_id=1, source_target_pairs={{0,1},{1,0}}", "collective-permute-start", 2)
    assert found.pairs
    assert found.ids.tolist() == [[0, 1], [1, 0]]


def test_a_permute_without_pairs_moves_nothing() -> None:
    found = read("channel_id=1, source_target_pairs={}", "collective-permute-start", 8)
    assert found.pairs
    assert found.ids.shape == (0, 2)


def test_groups_of_several_sizes_are_those_of_the_largest() -> None:
    found = read(GLOBAL.replace("{}", "{{0,1},{2,3},{4}}"), "all-reduce", 5)
    assert found.ids.tolist() == [[0, 1], [2, 3]]
    assert found.note


@pytest.mark.parametrize(
    "written", ["{{0,1}", "[4", "mesh['a'=2", "x", "[4,4]<=[4,5]", "[9]<=[9]", "[1,8]<=[2,4]T(0,2)"]
)
def test_what_is_no_group_is_refused(written: str) -> None:
    with pytest.raises(FileError, match="are not groups of the program's 8 devices"):
        ids(written)


def test_groups_of_devices_that_the_program_has_not() -> None:
    with pytest.raises(FileError, match="name device 8, but the program is for 8 devices"):
        ids("{{0,1},{7,8}}")


def test_an_instruction_without_groups_has_none() -> None:
    assert read_groups("dimensions={0}", "all-gather", 4) is None


@given(st.permutations(range(3)), st.sampled_from([(2, 3, 4), (4, 1, 6), (8, 3, 1)]))
def test_iota_groups_are_numpys(turned: list[int], dims: tuple[int, ...]) -> None:
    laid = np.arange(24).reshape(dims).transpose(turned).reshape(4, 6)
    text = f"[4,6]<=[{','.join(map(str, dims))}]T({','.join(map(str, turned))})"
    assert ids(text, 24) == laid.tolist()


def test_6144_devices_are_read_at_once() -> None:
    """Every form of the groups of v5p 16x16x24."""
    order = np.arange(6144).reshape(256, 24)
    texts = [
        f"replica_groups=[24,256]<=[256,24]T(1,0), use_global_device_ids=true, channel_id={i}"
        for i in range(1, 21)
    ]
    listed = "},{".join(",".join(map(str, group)) for group in order.T.tolist())
    pairs = "},{".join(f"{i},{(i + 1) % 6144}" for i in range(6144))
    start = process_time()
    for text in texts:
        assert (read(text, "all-gather", 6144).ids == order.T).all()
    assert read(GLOBAL.replace("{}", f"{{{{{listed}}}}}"), "all-gather", 6144).size == 256
    assert len(read(f"source_target_pairs={{{{{pairs}}}}}, channel_id=1", "collective-permute",
                    6144).ids) == 6144  # fmt: skip
    assert process_time() - start < 1
