"""What tokens, examples and steps cost, in dollars that can be read."""

import pytest
from plans import ENCODER_480B, PLAN_480B, v4_2048
from replays import small_replay

import tpusim as ts
from tpusim.base.units import format_dollars
from tpusim.report import document


def test_a_million_tokens_cost_the_chips_seconds() -> None:
    result = ts.simulate(ENCODER_480B, PLAN_480B, v4_2048())
    cost, step_s = result.unit_cost, result.step_time_s
    assert cost.usd == pytest.approx(2048 * 3.22 / 3600 * step_s * 1e6 / (4096 * 512))
    low, high = cost.range_usd
    assert low / cost.usd == pytest.approx(result.step_time_range_s[0] / step_s)
    assert high / cost.usd == pytest.approx(result.step_time_range_s[1] / step_s)
    text = " ".join(str(result).split())
    ends = f"{format_dollars(low)} to {format_dollars(high)}"
    assert (
        f"cost {format_dollars(cost.usd)} per million tokens ({ends}), at $3.22 per chip-hour"
        in text
    )
    assert document(result)["unit_cost"] == cost.facts()


def test_a_compiled_program_costs_for_its_steps() -> None:
    result = small_replay()
    assert result.unit_cost.unit == "thousand steps"
    assert result.unit_cost.usd == pytest.approx(
        1000 * result.step_time_s * result.pod.usd_per_second()
    )
    assert result.unit_cost.range_usd is None


def test_a_chip_without_a_price_has_no_cost() -> None:
    pod = ts.Slice(ts.load_chip("v3").replace(price=None), "4x4")
    model = ts.models.Transformer(layers=2, embed=256, mlp=1024, heads=4, vocab=1000)
    plan = ts.Plan(mesh={"fsdp": pod.devices}, seq_len=64, global_batch=64)
    result = ts.simulate(model, plan, pod)
    assert result.unit_cost is None
    assert "\ncost " not in str(result)


@pytest.mark.parametrize(
    ("usd", "text"),
    [(0.4234, "$0.42"), (3.2, "$3.20"), (99.999, "$100.00"), (1234.5, "$1,234"),
     (6_889_257, "$6,889,000"), (0.09, "$0.090"), (1.123e-6, "$0.0000011"), (0, "$0")],
)  # fmt: skip
def test_dollars_have_no_exponent(usd: float, text: str) -> None:
    assert format_dollars(usd) == text
