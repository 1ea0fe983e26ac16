"""Groups as tables of run files, in settings, and in sweeps."""

from pathlib import Path

import pytest
from inputs import wanted
from test_runfile import P, written

from tpusim.base import ModelError, PlanError, TpusimError
from tpusim.graph import Remat
from tpusim.models import MODEL_KEYS
from tpusim.plan import PLAN_KEYS
from tpusim.runfile import changed_plan, read_run
from tpusim.sweeps import candidates

MOE = "layers = 2\nembed = 64\nmlp = 256\nheads = 4\nvocab = 100"

SAME = [
    ('gather_dtype = "int8"', '[plan.dtypes]\ngather = "int8"'),
    ('remat = "minimal"\nsave = ["q"]', '[plan.remat]\npolicy = "minimal"\nsave = ["q"]'),
    ('remat = "minimal"\nsave = ["q"]', 'save = ["q"]\n[plan.remat]\npolicy = "minimal"'),
    ('optimizer = "sgd"', 'optimizer = { name = "sgd" }'),
    ('context_exchange = { context = "ring" }', 'context.exchange.context = "ring"'),
    ("capacity_factor = 1", "experts = { capacity_factor = 1 }"),
    ("virtual_stages = 2\nstage_layers = [1]",
     "pipeline = { virtual_stages = 2, stage_layers = [1] }"),
]  # fmt: skip


@pytest.mark.parametrize(("flat", "grouped"), SAME)
def test_a_table_is_its_flat_keys(flat: str, grouped: str, tmp_path: Path) -> None:
    one, other = (read_run(written(tmp_path, plan=f"{P}\n{text}")) for text in (flat, grouped))
    assert one.plan == other.plan


def test_a_model_has_tables_too(tmp_path: Path) -> None:
    flat = f"{MOE}\nexperts = 8\nexperts_per_token = 2\nattention = 'dot'"
    grouped = f"{MOE}\nattention.kernel = 'dot'\n[model.moe]\nexperts = 8\nexperts_per_token = 2"
    one, other = (read_run(written(tmp_path, model=text)) for text in (flat, grouped))
    assert one.model == other.model
    changed = read_run(
        written(tmp_path, model='name = "mixtral-8x7b"\n[model.moe]\nexperts = 4')
    ).model
    assert (changed.name, changed.moe.experts) == ("mixtral-8x7b with moe.experts=4", 4)


SETTINGS = [
    ("", "plan.dtypes.gather=int8", {"gather_dtype": "int8"}),
    ('gather_dtype = "bf16"', "plan.dtypes.gather=int8", {"gather_dtype": "int8"}),
    ('[plan.dtypes]\ngather = "bf16"\nloss = "f32"', "plan.gather_dtype=int8",
     {"gather_dtype": "int8", "loss_dtype": "f32"}),
    ('gather_dtype = "bf16"\nloss_dtype = "f32"', "plan.dtypes={ gather = 'int8' }",
     {"gather_dtype": "int8", "loss_dtype": "f32"}),
    ('remat = "minimal"', "plan.remat.policy=dots", {"remat": "dots"}),
    ('remat = "minimal"', 'plan.remat.save=["q"]', {"remat": "minimal", "save": ("q",)}),
    ('remat = "minimal"\nsave = ["k"]', 'plan.remat.save=["q"]',
     {"remat": "minimal", "save": ("q",)}),
    ('[plan.remat]\npolicy = "minimal"\nsave = ["q"]', "plan.remat=dots",
     {"remat": "dots", "save": ("q",)}),
    ('[plan.remat]\npolicy = "minimal"\nsave = ["q"]', 'plan.save=["k"]',
     {"remat": "minimal", "save": ("k",)}),
    ('context_exchange = "ring"', "plan.context.exchange.context=gather",
     {"context_exchange": {"context": "gather"}}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "setting", "found"), SETTINGS)
def test_a_setting_replaces_either_spelling(
    text: str, setting: str, found: dict[str, object], tmp_path: Path
) -> None:
    plan = read_run(written(tmp_path, plan=f"{P}\n{text}"), [setting]).plan
    plain = read_run(written(tmp_path)).plan
    assert plan == plain.replace(**found)


def test_a_setting_changes_one_key_of_a_plan(tmp_path: Path) -> None:
    plan = read_run(written(tmp_path, plan=f'{P}\nsave = ["q"]')).plan
    assert changed_plan(plan, ["plan.remat.policy=dots"]).remat == Remat("dots", ("q",))
    assert changed_plan(plan, ["plan.remat=dots"]).remat == Remat("dots", ("q",))


MISTAKES = [
    ({"plan": f'{P}\ngather_dtype = "int8"\n[plan.dtypes]\ngather = "int8"'}, PlanError,
     "plan.dtypes.gather and plan.gather_dtype are both given|"
     "plan.gather_dtype and plan.dtypes.gather are both given"),
    ({"plan": f'{P}\n[plan.dtypes]\ngather = "int9"'}, PlanError,
     "plan.dtypes.gather is 'int9': did you mean 'int8'"),
    ({"plan": f'{P}\n[plan.dtypes]\ngather = 9'}, PlanError,
     "plan.dtypes.gather is 9; write text in quotes$"),
    ({"plan": f'{P}\n[plan.dtypes]\ngathers = "int8"'}, PlanError,
     r"\[plan.dtypes\] has an unknown key 'gathers'; did you mean 'gather'\?"),
    ({"plan": f'{P}\n[plan.dtype]\ngather = "int8"'}, PlanError,
     "plan.dtype is a table; write one of bf16, f32, in quotes"),
    ({"plan": f"{P}\ndtypes = 3"}, PlanError, "plan.dtypes is 3; write a table of compute, param"),
    ({"plan": f"{P}\nremat = 3"}, PlanError,
     "plan.remat is 3; write one of full, minimal, dots, none, in quotes$"),
    ({"plan": f"{P}\n[plan.remat]\npolicy = 3"}, PlanError,
     "plan.remat.policy is 3; write text in quotes$"),
    ({"plan": f"{P}\n[plan.remat]\npolice = 3"}, PlanError,
     r"\[plan.remat\] has an unknown key 'police'; did you mean 'policy'"),
    ({"plan": f"{P}\npipeline = {{ stage_layers = [0] }}"}, PlanError,
     r"plan.pipeline.stage_layers\[0\] is 0; write a whole number from 1"),
    ({"model": f"{MOE}\n[model.moe]\nexperts = -1"}, ModelError,
     "model.moe.experts is -1; write a whole number from 0"),
    ({"model": f"{MOE}\n[model.moe]\nexpert = 1"}, ModelError,
     r"\[model.moe\] has an unknown key 'expert'; did you mean 'experts'"),
    ({"model": f"{MOE}\nexperts_per_token = 9\n[model.moe]\nexperts = 8"}, ModelError,
     "experts_per_token is 9; write how many of the 8 experts"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "kind", "sentence"), MISTAKES)
def test_a_mistake_is_told_by_the_key_as_written(
    parts: dict[str, str], kind: type[TpusimError], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=sentence):
        read_run(written(tmp_path, **parts))


@pytest.mark.parametrize(
    "vary",
    [
        '[sweep.vary.dtypes]\ngather = ["bf16", "int8"]',
        '[sweep.vary]\ngather_dtype = ["bf16", "int8"]',
    ],
)
def test_a_sweep_varies_keys_of_either_spelling(vary: str, tmp_path: Path) -> None:
    run = read_run(written(tmp_path, plan=f"{P}\n{vary}"))
    space = run.sweep
    found = list(candidates(space, run.pod))
    assert [each.plan.dtypes.gather for each in found] == ["bf16", "int8"]
    assert [list(each.values) for each in found] == [list(space.vary)] * 2


def test_a_sweep_of_a_policy_keeps_what_is_saved(tmp_path: Path) -> None:
    vary = '[sweep.vary.remat]\npolicy = ["dots", "full"]\n[sweep.vary.experts]\nskew = [0, 1]'
    run = read_run(written(tmp_path, plan=f'{P}\nsave = ["q"]\n{vary}'))
    space = run.sweep
    assert set(space.vary) == {"remat.policy", "experts.skew"}
    remats = {each.plan.remat for each in candidates(space, run.pod)}
    assert remats == {Remat("dots", ("q",)), Remat("full", ("q",))}


SWEEP_MISTAKES = [
    ('[sweep.vary.dtypes]\ngather = ["int9"]',
     r"sweep.vary.dtypes.gather\[0\]: plan.dtypes.gather is 'int9': did you mean 'int8'"),
    ("[sweep.vary.dtypes]\ngather = [9]", r"sweep.vary.dtypes.gather\[0\] is 9; write text in"),
    ('[sweep.vary.dtypes]\ngather = "int8"',
     "sweep.vary.dtypes.gather is the text 'int8'; write a list of values to try, each text in"),
    ('[sweep.vary.dtypes]\ngathers = ["int8"]',
     r"\[sweep.vary.dtypes\] has an unknown key 'gathers'"),
    ('[sweep.vary.remat]\npolicy = ["mini"]',
     r"sweep.vary.remat.policy\[0\]: plan.remat.policy is"),
    ("[sweep.vary]\nremat = [3]", r"sweep.vary.remat\[0\] is 3; write one of full, min"),
    ("[sweep.vary]\nremat = 3", "sweep.vary.remat is 3; write a list of values to try"),
    ('[sweep.vary]\ngather_dtype = ["int8"]\ndtypes.gather = ["int8"]',
     "plan.gather_dtype and plan.dtypes.gather are both given"),
]  # fmt: skip


@pytest.mark.parametrize(("vary", "sentence"), SWEEP_MISTAKES)
def test_a_mistake_of_a_sweep_is_told_by_the_key_as_written(
    vary: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=sentence):
        read_run(written(tmp_path, plan=f"{P}\n{vary}"))


def test_every_key_says_what_to_write() -> None:
    for section, keys in (("plan", PLAN_KEYS), ("model", MODEL_KEYS)):
        for group, name in keys.table.values():
            assert wanted([section, group, name] if group else [section, name])
        assert all(wanted([section, group]) for group in keys.groups)
