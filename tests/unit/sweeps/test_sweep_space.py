"""What a space holds: its meshes, values and placements, and their order."""

from math import prod

import pytest
from search_spaces import AXES, BASE, POD, space

from tpusim.base import HardwareError, PlanError
from tpusim.hardware import Slice, placements
from tpusim.plan import Plan
from tpusim.sweeps import Space, candidates
from tpusim.sweeps.search_axes import factorisations


def meshes(tried: Space, pod: Slice) -> list[dict[str, int]]:
    return [dict(candidate.plan.mesh) for candidate in candidates(tried, pod)]


def test_factorisations_of_a_power_of_two_are_counted_by_stars_and_bars() -> None:
    found = list(factorisations(2**11, 3))
    assert len(found) == len(set(found)) == 13 * 12 // 2
    assert all(prod(sizes) == 2**11 for sizes in found)


def test_factorisations_know_other_primes() -> None:
    assert list(factorisations(6, 2)) == [(1, 6), (2, 3), (3, 2), (6, 1)]


def test_values_are_outermost_then_meshes_then_placements() -> None:
    tried = list(candidates(space(placements="all", vary={"remat": ["none", "full"]}), POD))
    remats = [candidate.plan.remat.policy for candidate in tried]
    assert remats == sorted(remats, reverse=True)
    half = tried[: len(tried) // 2]
    assert [c.plan.mesh for c in half] == [c.plan.mesh for c in tried[len(half) :]]
    shapes = [tuple(c.plan.mesh.values()) for c in half]
    assert shapes == sorted(shapes)


def test_all_placements_are_those_of_the_geometry() -> None:
    mesh = {"fsdp": 4, "tensor": 4}
    tried = candidates(Space(base=BASE, meshes=[mesh], placements="all"), POD)
    assert tuple(candidate.placement for candidate in tried) == placements(POD, mesh)


def test_the_base_mesh_is_tried_when_there_is_no_other() -> None:
    only = list(candidates(Space(base=BASE, vary={"remat": ["full", "none"]}), POD))
    assert [(c.plan.mesh, c.plan.remat.policy) for c in only] == [
        ({"fsdp": 16}, "full"), ({"fsdp": 16}, "none"),
    ]  # fmt: skip


def test_axes_of_the_base_keep_their_size_and_dcn_axes_share_the_slices() -> None:
    pod = Slice("v5e", "4x4", 2)
    base = Plan(mesh={"dcn_data": 2, "tensor": 4}, seq_len=64, global_batch=32)
    found = meshes(Space(base=base, axes=("data", "fsdp")), pod)
    assert found == [
        {"dcn_data": 2, "tensor": 4, "data": d, "fsdp": 4 // d} for d in (1, 2, 4)
    ]  # fmt: skip
    across = meshes(Space(base=BASE, axes=("fsdp", "dcn_data")), pod)
    assert across == [{"fsdp": 16, "dcn_data": 2}]


MISTAKES = [
    ({"placements": "al"}, "sweep.placements is 'al': did you mean 'all'?"),
    ({"meshes": [{"fsdp": 16}]}, "sweep.axes and sweep.meshes are both given"),
    ({"axes": "data"}, "sweep.axes is 'data'; write a list of names"),
    ({"axes": ("data", "data")}, "write a list of names, each once"),
    ({"axes": (), "meshes": [{"fsdp": 0}]}, r"sweep.meshes\[0\]: plan.mesh.fsdp is 0"),
    ({"axes": (), "meshes": [{"fsdp": 16}, {}]}, r"sweep.meshes\[1\]: plan.mesh is empty"),
    ({"vary": {"remta": ["full"]}}, "unknown field 'remta'; did you mean 'remat'?"),
    ({"vary": {"mesh": [{}]}}, "sweep.vary does not take 'mesh'; write axes or meshes"),
    ({"vary": {"remat": "full"}}, "sweep.vary.remat is 'full'; write a list of values"),
    ({"vary": {"remat": []}}, r"sweep.vary.remat is \[\]; write a list"),
    ({"vary": {"remat": ["full", "ful"]}}, r"sweep.vary.remat\[1\]: plan.remat is 'ful': did you"),
    ({"axes": 3}, "sweep.axes is 3; write a list of names"),
    ({"axes": [["data"]]}, r"sweep.axes is \[\['data'\]\]; write a list of names"),
    ({"shapes": "twisted"}, r"^sweep.shapes is 'twisted'; write 'all', 'all\+twisted' or a list of "
     r"shapes, such as \['4x4x8'\], or leave it out to keep the slice's own$"),
    ({"shapes": "4x4"}, r"sweep.shapes is '4x4'; .* such as \['4x4x8'\]"),
    ({"shapes": []}, r"sweep.shapes is \[\]; write 'all'"),
    ({"shapes": 16}, "sweep.shapes is 16; write 'all'"),
    ({"shapes": ["4x4", "4x4"]}, r"sweep.shapes\[1\] is '4x4' again; write each shape once"),
    ({"shapes": ["4x4", 44]}, r"sweep.shapes\[1\] is 44; write a shape, such as '4x4x8'"),
    ({"shapes": [""]}, r"sweep.shapes\[0\] is ''; write a shape"),
    ({"base": Plan(mesh={"fsdp": 16}, seq_len=1, global_batch=1, placement={})},
     "plan.placement is given, but the sweep chooses"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "sentence"), MISTAKES)
def test_a_space_that_cannot_be_is_one_sentence(given: dict, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        space(**given)


def shapes_of(chip: str, shape: str, given: str | list[str]) -> list[str]:
    base = Plan(mesh={"fsdp": 8}, seq_len=64, global_batch=32)
    tried = candidates(Space(base=base, shapes=given), Slice(chip, shape))
    return [str(candidate.pod.topology) for candidate in tried]


def test_all_shapes_have_the_chips_of_the_slice_and_one_order() -> None:
    assert shapes_of("v4", "16x4x4", "all") == ["4x4x16", "4x8x8"]
    assert shapes_of("v4", "16x4x4", "all+twisted") == ["4x4x16", "4x8x8", "4x8x8_twisted"]
    assert shapes_of("v6e", "8x8", "all+twisted") == ["8x8"]
    assert shapes_of("v4", "4x8x8", ["8x4x8", "4x8x8_twisted"]) == ["8x4x8", "4x8x8_twisted"]


def test_each_shape_has_its_own_placements() -> None:
    pod, mesh = Slice("v5p", "4x8x8"), {"fsdp": 16, "tensor": 16}
    base = Plan(mesh=mesh, seq_len=64, global_batch=256)
    tried = list(candidates(Space(base=base, shapes="all", placements="all"), pod))
    for shape in ("4x4x16", "4x8x8"):
        assert tuple(c.placement for c in tried if str(c.pod.topology) == shape) == placements(
            Slice("v5p", shape), mesh
        )


def test_a_shape_of_another_slice_is_reported() -> None:
    with pytest.raises(
        PlanError, match=r"shapes\[1\] is 4x4x4, which has 64 chips, but the slice 4x8x8 has 256"
    ):
        shapes_of("v4", "4x8x8", ["4x4x16", "4x4x4"])
    with pytest.raises(HardwareError, match=r"^sweep.shapes\[1\]: v4 has no slice 4x5x8"):
        shapes_of("v4", "4x8x8", ["4x8x8", "4x5x8"])
    with pytest.raises(HardwareError, match=r"sweep.shapes\[0\]: v4 4x4x16 cannot be twisted"):
        shapes_of("v4", "4x8x8", ["4x4x16_twisted"])


def test_a_kept_axis_that_does_not_divide_is_reported() -> None:
    base = Plan(mesh={"tensor": 3}, seq_len=64, global_batch=32)
    with pytest.raises(PlanError, match=r"plan.mesh has tensor = 3 besides, which does not divide"):
        list(candidates(Space(base=base, axes=("data", "fsdp")), POD))


def test_every_factorisation_is_a_mesh_once() -> None:
    found = meshes(space(), POD)
    assert {tuple(mesh) for mesh in found} == {AXES}
    assert sorted(tuple(mesh.values()) for mesh in found) == sorted(factorisations(16, 3))
