"""Mistakes in what is saved, offloaded, fed or cut into microbatches, in Python and in files.

Each is one sentence with the same words; a file's begins with the file and the setting, and in a
sweep a plan that the model does not admit is a row, while the others run.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from commands import run
from plans import plan_of, small

from tpusim.base import TpusimError
from tpusim.cli.sweep_command import REFUSED
from tpusim.hardware import Slice, load_chip
from tpusim.simulation import simulate

POD = Slice("v5e", "4x4")
MODEL = {"layers": 3, "embed": 64, "mlp": 256, "heads": 8, "head_dim": 32, "vocab": 512}
NAMES = 'a list of names, such as ["q", "k"]'
NO_ACTIVATION = "which is no activation of a layer: "

ADMITTED = [
    ("save", ["contxt"], f"plan.save lists 'contxt', {NO_ACTIVATION}did you mean 'context'?"),
    ("save", ["q", "mlp_in"], f"plan.save lists 'mlp_in', {NO_ACTIVATION}did you mean 'mlp_in_0' "
     "or 'mlp_in_1'?"),
    ("offload", ["layer/q"], f"plan.offload lists 'layer/q', {NO_ACTIVATION}did you mean 'q'?"),
    ("offload", ["wv"], f"plan.offload lists 'wv', {NO_ACTIVATION}did you mean 'v'?"),
    ("offload", ["minimal"], f"plan.offload lists 'minimal', {NO_ACTIVATION}valid are attended, "),
    ("microbatches", 3, "plan.global_batch is 32, which is smaller than 3 microbatches x the 16 "
     "shards of its axes (fsdp=16) = 48; write a multiple, such as 48, or microbatches = 2"),
    ("matmul_dtype_dw", "fp8", "plan.matmul_dtype_dw is 'fp8', but v5e has no fp8 matmul; "
     "write bf16 or int8"),
]  # fmt: skip
"""Values that some model or slice admits: these do not."""

IMPOSSIBLE = [
    ("save", ["q", "q"], "plan.save lists 'q' twice; write each name once"),
    ("offload", ["k", "q", "k"], "plan.offload lists 'k' twice; write each name once"),
    ("remat", "minimul", "plan.remat is 'minimul': did you mean 'minimal'?"),
    ("matmul_dtype", "int9", "plan.matmul_dtype is 'int9': did you mean 'int8'?"),
    ("input_s", -0.5, "plan.input_s is -0.5; write seconds, a number from 0 to 1,000,000,000"),
    ("loop", "synchron", "plan.loop is 'synchron': did you mean 'synchronous'?"),
]  # fmt: skip

MISTYPED = [
    ("save", "q", f"plan.save is 'q'; write {NAMES}", f" is the text 'q'; write {NAMES}"),
    ("offload", "context", f"plan.offload is 'context'; write {NAMES}", " is the text 'context'; "),
    ("save", [3], f"plan.save is [3]; write {NAMES}", f"[0] is 3; write {NAMES}"),
    ("offload_optimizer", "no", "plan.offload_optimizer is 'no'; write true or false",
     " is the text 'no'; write true or false, without quotes"),
    ("microbatches", 2.5, "plan.microbatches is 2.5; it must be a whole number of at least 1",
     " is 2.5; write a whole number from 1 to"),
    ("microbatches", 0, "plan.microbatches is 0; it must be a whole number of at least 1",
     " is 0; write a whole number from 1 to"),
    ("input_s", "1 s", "plan.input_s is '1 s'; write seconds, a number from 0 to 1,000,000,000",
     " is the text '1 s'; write a number, without quotes"),
    ("input_s", True, "plan.input_s is True; write seconds, a number from 0 to 1,000,000,000",
     " is true; write a number, without quotes"),
]  # fmt: skip
"""The last is what a file is told."""

SAME = ADMITTED + IMPOSSIBLE


def in_python(key: str, value: object, **other: object) -> str:
    with pytest.raises(TpusimError) as raised:
        simulate(small(), plan_of({"fsdp": 16}, **{key: value}, **other), POD)
    return str(raised.value)


def toml(table: Mapping[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def written(folder: Path, vary: Mapping[str, object]) -> str:
    """A run file, or with something to vary a sweep file."""
    plan = {"seq_len": 16, "global_batch": 32}
    text = f'[slice]\nchip = "v5e"\ntopology = "4x4"\n[model]\n{toml(MODEL)}[plan]\n{toml(plan)}'
    text += "mesh = { fsdp = 16 }\n" + (f"[sweep.vary]\n{toml(vary)}" if vary else "")
    path = folder / "a.toml"
    path.write_text(text, "utf-8")
    return str(path)


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run(arguments)
    out, error = capsys.readouterr()
    assert error.count("\n") == (1 if error else 0)
    return code, " ".join(out.split()), error


@pytest.mark.parametrize(("key", "value", "sentence"), SAME + [each[:3] for each in MISTYPED])
def test_in_python(key: str, value: object, sentence: str) -> None:
    said = in_python(key, value)
    assert said.startswith(sentence)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [*SAME, *((key, value, f"plan.{key}{told}") for key, value, _, told in MISTYPED)],
)
def test_as_a_setting_of_a_run(
    key: str, value: object, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, setting = written(tmp_path, {}), f"plan.{key}={json.dumps(value)}"
    code, out, error = told(["simulate", path, "--set", setting], capsys)
    assert (code, out) == (2, "")
    assert error.startswith(f"error: {path} --set {setting}: {sentence}")


@pytest.mark.parametrize(("key", "value", "sentence"), ADMITTED)
def test_in_a_sweep_it_is_a_row_beside_the_others(
    key: str, value: object, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good: Mapping[str, object] = {"microbatches": 2, "matmul_dtype_dw": "int8"}
    path = written(tmp_path, {key: [good.get(key, ["v"]), value]})
    code, out, error = told(["sweep", path, "--workers", "1"], capsys)
    assert (code, error) == (REFUSED, "")
    assert "1 fit, 0 do not fit, 1 refused" in out
    assert f"every plan with {key} = " in out
    assert f"refused 1: {sentence}" in out


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        *((key, value, f"sweep.vary.{key}[1]: {said}") for key, value, said in IMPOSSIBLE),
        *((key, value, f"sweep.vary.{key}[1]{told}") for key, value, _, told in MISTYPED),
    ],
)
def test_in_a_sweep_what_no_plan_can_have_is_told_with_its_place(
    key: str, value: object, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"remat": "full", "matmul_dtype": "bf16", "offload_optimizer": True, "microbatches": 1,
            "input_s": 0.5, "loop": "synchronous"}  # fmt: skip
    path = written(tmp_path, {key: [good.get(key, []), value]})
    code, out, error = told(["sweep", path, "--workers", "1"], capsys)
    assert (code, out) == (2, "")
    assert error.startswith(f"error: {path}: {sentence}")


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_batch_is_made_in_finite_time(value: float) -> None:
    said = in_python("input_s", value)
    assert said == f"plan.input_s is {value}; write seconds, a number from 0 to 1,000,000,000"


def test_a_name_on_both_lists_is_told_which_list_does_what() -> None:
    said = in_python("offload", ("k", "q"), save=("q",))
    assert said == (
        "'q' is in plan.save and in plan.offload; keep it in one: save holds it in HBM, offload on "
        "the host"
    )


@pytest.mark.parametrize(
    ("mesh", "batch", "count", "sentence"),
    [
        ({"fsdp": 16, "dcn_data": 2}, 96, 4, "is smaller than 4 microbatches x the 32 shards of "
         "its axes (dcn_data=2 x fsdp=16) = 128; write a multiple, such as 128, or microbatches = "
         "3"),
        ({"data": 16, "dcn_fsdp": 2}, 128, 3, "does not divide by 3 microbatches x the 32 shards "
         "of its axes (dcn_fsdp=2 x data=16) = 96; write a multiple, such as 96 or 192, or "
         "microbatches = 2"),
        ({"data": 4, "tensor": 4, "dcn_data": 2}, 9, 1, "does not divide by the 8 shards of its "
         "axes (dcn_data=2 x data=4); write a multiple, such as 8 or 16"),
    ],
)  # fmt: skip
def test_what_is_offered_for_microbatches_over_slices_works(
    mesh: dict[str, int], batch: int, count: int, sentence: str
) -> None:
    """Each number of the sentence, written instead, is a plan that runs."""
    pod, plan = Slice("v5e", "4x4", 2), {"global_batch": batch, "microbatches": count}
    with pytest.raises(TpusimError) as raised:
        simulate(small(), plan_of(mesh, **plan), pod)
    assert str(raised.value) == f"plan.global_batch is {batch}, which {sentence}"
    offers = sentence.rsplit("such as ", 1)[1]
    fewer = re.search(r"microbatches = (\d+)", offers)
    sizes = re.findall(r"\d+", offers.split(", or")[0])
    assert sizes
    for size in sizes:
        simulate(small(), plan_of(mesh, **(plan | {"global_batch": int(size)})), pod)
    if fewer:
        simulate(small(), plan_of(mesh, **(plan | {"microbatches": int(fewer[1])})), pod)


@pytest.mark.parametrize("remat", ["minimal", "dots", "none"])
def test_a_tensor_that_the_policy_saves_can_leave_for_the_host(remat: str) -> None:
    """It is no mistake: nothing else is computed, and its stack is there instead of here."""
    plans = [plan_of({"fsdp": 16}, remat=remat, offload=names) for names in ((), ("mlp_in_0",))]
    kept, gone = (simulate(small(), plan, POD) for plan in plans)
    assert gone.flops == kept.flops
    assert gone.host_need_bytes == 8 * 3 * 2 * 16 * 256 * 2
    assert gone.hbm_peak_bytes < kept.hbm_peak_bytes


@pytest.mark.thorough
def test_hbm_too_small_for_the_weights_alone_is_an_answer() -> None:
    """With its times, and with who needs what: the weights are more than there is."""
    chip = load_chip("v5e").replace(hbm_usable_bytes="100 kB")
    found = simulate(small(), plan_of({"fsdp": 16}), Slice(chip, "4x4"))
    assert not found.fits
    assert found.step_time_s == simulate(small(), plan_of({"fsdp": 16}), POD).step_time_s
    assert found.memory_bytes["weights"] > found.hbm_bytes
    text = " ".join(str(found).split())
    assert re.match(r"DOES NOT FIT: needs \d+ KiB of 97.7 KiB usable per device: ", text)
    assert "weights 102 KiB" in text
