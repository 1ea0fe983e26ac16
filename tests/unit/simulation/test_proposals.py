"""Proposals: combined changes that a search finds, with what each adds."""

from functools import cache

import pytest

import tpusim as ts
from tpusim.graph import Remat
from tpusim.models import Transformer
from tpusim.results import Fit, PlanResult
from tpusim.results.proposal import Effort, Proposal
from tpusim.runfile import changed_plan
from tpusim.searches.request import SearchRequest
from tpusim.simulation.advice.decisions import (
    Decisions,
    changed_keys,
    saved_words,
    tuned_values,
)

LAYERS = {"layers": 4, "embed": 4096, "mlp": 14336, "heads": 32, "kv_heads": 8, "vocab": 32000}


def dense(**changes: object) -> PlanResult:
    """Four layers of an 8B decoder with 8192 tokens on 16 chips of v5e."""
    keys = {"mesh": {"fsdp": 16}, "seq_len": 8192, "global_batch": 16} | changes
    return ts.simulate(Transformer(**LAYERS), ts.Plan(**keys), "v5e:4x4")


@cache
def proposals() -> tuple[Proposal, ...]:
    return dense().advice().proposals


@pytest.mark.thorough
def test_the_first_proposal_takes_flags_alone_and_finds_what_an_expert_would() -> None:
    """Larger blocks and the kernels' results saved, for 8192 tokens in blocks of 512."""
    first = proposals()[0]
    assert {part.effort for part in first.parts} == {Effort.FLAG}
    assert first.plan.attention_kernel.block[0] > 512
    assert "context" in first.plan.remat.save
    assert first.saves > 0.15
    assert first.fit is Fit.FITS
    assert first.effort == f"{len(first.parts)} flags"


@pytest.mark.thorough
def test_each_change_says_what_it_adds_and_needs() -> None:
    for proposal in proposals():
        assert sum(part.adds for part in proposal.parts) == pytest.approx(proposal.saves)
        freed = sum(part.frees_bytes for part in proposal.parts)
        need = proposals()[0].hbm_bytes and dense().hbm_peak_bytes - proposal.hbm_peak_bytes
        assert freed == pytest.approx(need)
        assert sorted(s for part in proposal.parts for s in part.settings) == sorted(
            proposal.settings
        )
        assert f"saves {proposal.saves:.1%}" in str(proposal)


def test_no_change_of_a_proposal_is_idle() -> None:
    """Without any one of its parts, the first proposal is slower."""
    base, first = dense(), proposals()[0]
    for left_out in first.parts:
        kept = [s for part in first.parts if part is not left_out for s in part.settings]
        plan = changed_plan(base.plan, kept)
        assert ts.simulate(base.model, plan, base.pod).step_time_s > first.step_time_s


@pytest.mark.thorough
def test_a_plan_that_does_not_fit_gets_one_that_does() -> None:
    base = dense(remat="none", global_batch=64)
    assert base.fit is Fit.TOO_LARGE
    made = base.advice().proposals
    assert made
    assert made[0].fit is Fit.FITS
    assert any(part.frees_bytes > 0 for part in made[0].parts)


PIPELINE = Transformer(**(LAYERS | {"layers": 16}))
STAGED = ts.Plan(
    mesh={"stage": 4, "fsdp": 4}, seq_len=2048, global_batch=32, microbatches=8
)  # fmt: skip


def test_the_schedule_of_a_pipeline_is_a_decision() -> None:
    choices = Decisions(PIPELINE, STAGED).of(Effort.PROGRAM)
    found = [choice.keys for choice in choices if "schedule" in choice.keys]
    parts = [each["virtual_stages"] for each in found if each["schedule"] == "interleaved"]
    assert parts == [2, 4, 8]


@pytest.mark.thorough
def test_a_pipeline_gets_a_better_schedule() -> None:
    found = ts.simulate(PIPELINE, STAGED, "v5p:2x2x4").advice().proposals
    assert any(each.plan.pipeline.schedule == "interleaved" for each in found)


def test_quick_advice_has_no_proposals() -> None:
    advice = dense().advice(quick=True)
    assert advice.proposals == ()
    assert any(change.what == "attention blocks of 1024" for change in advice.changes)
    assert advice.facts()["proposals"] == []


def test_a_program_in_another_style_is_for_decoders_alone() -> None:
    model = Transformer(**(LAYERS | {"kind": "encoder"}))
    plan = ts.Plan(mesh={"fsdp": 16}, seq_len=512, global_batch=16)
    words = [choice.what for choice in Decisions(model, plan).of(Effort.PROGRAM)]
    assert "MaxText's program" not in words
    assert "MaxText's program" in [
        choice.what for choice in Decisions(Transformer(**LAYERS), plan).of(Effort.PROGRAM)
    ]


@pytest.mark.parametrize("name", ["llama3.1-8b", "deepseek-v2-lite", "t5-3b", "vit-g/14"])
def test_every_choice_changes_the_plan_and_has_words_of_its_own(name: str) -> None:
    model = ts.models.load(name)
    text = {} if name.startswith("vit") else {"seq_len": 2048}
    plan = ts.Plan(mesh={"fsdp": 8}, global_batch=64, microbatches=2, save=["q"], **text)
    choices = [*Decisions(model, plan).of(Effort.PROGRAM)]
    assert len(choices) > 8
    assert len({(one.decision, one.what) for one in choices}) == len(choices)
    for choice in choices:
        assert plan.replace(**choice.keys) != plan
        assert changed_keys(plan, choice.keys)


def test_policies_are_told_by_what_they_change() -> None:
    full = Remat("full", ("q",))
    assert saved_words(full, Remat("full", ("q", "k"))) == "k saved"
    assert saved_words(full, Remat("full", ())) == "q not saved"
    assert saved_words(full, Remat("full", (), ("q",))) == "q on the host"
    assert saved_words(full, Remat("minimal", ("context",))) == "remat minimal, context saved"
    minimal = Remat("minimal", ("context",))
    assert saved_words(minimal, Remat("full", ("context",))) == "remat full, context saved"
    assert saved_words(minimal, Remat("full")) == "remat full"


def test_a_search_tunes_what_advice_tries() -> None:
    """The space has the values of the decisions, and the file's own where it gives some."""
    model, plan = Transformer(**LAYERS), dense().plan
    values = tuned_values(model, plan)
    assert values["attention_backward"] == ["two-kernels", "one-kernel"]
    assert values["vocab_tiles"][0] == plan.vocab_tiles
    assert values["save"][-1] == ["context"]
    request = SearchRequest(
        meshes=[{"fsdp": 16}], tune=True, vary={"vocab_tiles": [1]}, method="local"
    )
    space = request.asked(model, plan, ts.Slice("v5e", "4x4")).space
    assert space.vary["vocab_tiles"] == [1]
    assert space.vary["attention_block"] == values["attention_block"]
