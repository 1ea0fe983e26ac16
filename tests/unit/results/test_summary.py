"""The summary of a result: its words where a count is one, and where there is nothing to say."""

from dataclasses import replace

import tpusim as ts

MODEL = ts.models.Transformer(layers=2, embed=256, mlp=1024, heads=4, vocab=1000)


def lines_of(shape: str, **given: object) -> list[str]:
    pod = ts.Slice("v5e", shape)
    plan = ts.Plan(mesh={"fsdp": pod.devices}, seq_len=64, global_batch=16, **given)
    return str(ts.simulate(MODEL, plan, pod)).splitlines()


def test_one_chip_has_nothing_to_place() -> None:
    for given in ({}, {"placement": {}}):
        lines = lines_of("1x1", **given)
        assert lines[0].endswith("on v5e:1x1 (1 chip)")
        assert "placement   nothing to place" in lines


def test_a_placement_says_who_chose_it() -> None:
    assert "placement   fsdp=16 on x,y (chosen)" in lines_of("4x4")
    given = lines_of("4x4", placement={"fsdp": ["y", "x"]})
    assert given[0].endswith("(16 chips)")
    assert "placement   fsdp=16 on y,x (given)" in given


def test_a_name_that_no_backward_pass_reads_is_noted() -> None:
    """A layer's last projection, and without recomputation what is read in another shape only."""
    text = "note        not saved, as no backward pass reads it: "
    assert f"{text}mlp_out" in lines_of("4x4", save=["mlp_out", "context"])
    assert f"{text}q" in lines_of("4x4", remat="none", offload=["q"])
    assert not [line for line in lines_of("4x4", offload=["q"]) if line.startswith(text)]


def test_both_directions_of_a_link_are_one_where_the_same_is_printed_of_them() -> None:
    pod = ts.Slice("v5e", "2x2")
    plan = ts.Plan(mesh={"fsdp": 4}, seq_len=64, global_batch=16)
    result = ts.simulate(MODEL, plan, pod)
    use = {"ici:x+": 0.2501, "ici:x-": 0.2499, "ici:y+": 0.252, "ici:y-": 0.25, "hbm": 1e-5}
    assert "links       ici:x 25.0%, ici:y+ 25.2%, ici:y- 25.0% (" in str(
        replace(result, link_use=use)
    )
