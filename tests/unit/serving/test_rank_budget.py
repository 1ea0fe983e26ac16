"""Steps of several ranks stay within the budget of tokens of each."""

from tpusim.server import Policy, StepLoad, serve
from tpusim.traffic import Lengths, Traffic


class Recorded:
    """Costs that keep the loads of the steps with prompts."""

    def __init__(self) -> None:
        self.loads: list[StepLoad] = []

    def step_ps(self, load: StepLoad) -> int:
        self.loads.append(load)
        return 10**9

    def decode_ps(self, decodes: int, context: int, steps: int, growth: int) -> int:
        return steps * 10**9


def test_no_step_has_more_tokens_than_its_ranks_may_compute() -> None:
    """One rank has the longest chunk, and another the most sequences that decode."""
    costs = Recorded()
    traffic = Traffic.closed_loop(
        users=12,
        requests=120,
        prompt=Lengths.uniform(50, 900),
        output=Lengths.uniform(5, 60),
    )
    policy = Policy(ranks=4, max_num_batched_tokens=256, pages=1000, page_size=16)
    serve(traffic, policy, costs)
    assert max(load.decodes + load.prefills for load in costs.loads) == 4 * 256
