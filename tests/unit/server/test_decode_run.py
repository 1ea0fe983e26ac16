import pytest
from servers import AffineCosts

from tpusim.server.decode_run import DecodeRun
from tpusim.server.policy import Policy
from tpusim.server.token_clock import TokenClock

COSTS = AffineCosts(step=100, decode=1, key=1)


@pytest.mark.parametrize("host", [0, 13])
def test_a_run_is_its_steps(host: int) -> None:
    run = DecodeRun(COSTS, 2, 8, 2, host)
    ends = [0]
    for step in range(20):
        ends.append(ends[-1] + host + 100 + 2 + 8 + 2 * step)
    assert [run.ps(steps) for steps in range(1, 21)] == ends[1:]
    for elapsed in range(0, ends[-1] + 1, 7):
        first = next(step for step in range(1, 21) if ends[step] >= elapsed)
        assert run.first_by(elapsed, 20, ends[-1]) == (first, ends[first])


@pytest.mark.parametrize("growth", [0, 2, 40])
def test_the_step_in_which_something_happens_is_foreseen_or_searched_for(growth: int) -> None:
    run = DecodeRun(COSTS, 2, 8, growth)
    ends = [run.ps(steps) if steps else 0 for steps in range(21)]
    foreseen = 0
    for elapsed in range(ends[-1] + 1):
        found = run.foreseen(elapsed, 20)
        if found != (0, 0):
            foreseen += 1
            first = next(step for step in range(21) if ends[step] > elapsed)
            assert found == (first, ends[first])
    assert foreseen > 100


@pytest.mark.parametrize("growth", [0, 2])
@pytest.mark.parametrize("least", [100, 130, 143, 500])
def test_a_step_takes_what_the_longer_of_host_and_devices_takes(least: int, growth: int) -> None:
    run = DecodeRun(COSTS, 2, 8, growth, 5, least)
    ends = [0]
    for step in range(20):
        ends.append(ends[-1] + max(5 + 100 + 2 + 8 + growth * step, least))
    assert [run.ps(steps) for steps in range(1, 21)] == ends[1:]
    whole = DecodeRun(COSTS, 2, 8, growth, 5, least)
    assert whole.ps(20) == ends[20]
    for elapsed in range(0, ends[-1] + 1, 7):
        first = next(step for step in range(1, 21) if ends[step] >= elapsed)
        assert whole.first_by(elapsed, 20, ends[-1]) == (first, ends[first])


def test_the_host_beside_the_devices_and_between_them() -> None:
    between = Policy(pages=1, host_ps=3, sequence_ps=2)
    assert between.host(4) == (11, 0)
    assert Policy(pages=1, host_ps=3, schedule_ps=7, sequence_ps=2).host(4) == (3, 15)


@pytest.mark.parametrize("accepted", [1.0, 1.3, 2.0, 3.75])
def test_the_clock_counts_the_mean_tokens_of_a_step(accepted: float) -> None:
    clock = TokenClock(Policy(pages=1, drafted=3, accepted=accepted))
    before = clock.received
    for step in range(1, 200):
        assert clock.tokens(1) - clock.received in (int(accepted), -int(-accepted // 1))
        clock.advance(1)
        assert clock.received == int((step + 1) * accepted + 1e-9)
        assert clock.step_of(clock.received) <= clock.steps
        assert clock.step_of(clock.received + 1) > clock.steps
    assert clock.received - before == pytest.approx(199 * accepted, abs=1)
    for tokens in range(clock.received, clock.received + 30):
        steps = clock.steps_within(tokens)
        assert clock.tokens(steps - 1) <= tokens < clock.tokens(steps)
