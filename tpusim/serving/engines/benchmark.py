"""The traffic that `vllm bench serve` sends."""

import math

from tpusim.base.errors import PlanError
from tpusim.base.shown_value import cut
from tpusim.serving.engines.command import ServingCommand
from tpusim.traffic import Lengths, Traffic

DEFAULTS = {
    "--dataset-name": "random",
    "--random-input-len": 1024,
    "--random-output-len": 128,
    "--random-range-ratio": 0.0,
    "--num-prompts": 1000,
    "--request-rate": math.inf,
    "--burstiness": 1.0,
    "--seed": 0,
}
"""Values of flags that are not written. Source: vllm-tpu 0.32.0 (PyPI), vllm/benchmarks/serve.py
and vllm/benchmarks/datasets/datasets.py."""


def benchmark_traffic(command: ServingCommand | str) -> Traffic:
    """Return the traffic of a command of `vllm bench serve`.

    command: a command line, or one that was read.

    Raise PlanError for another command, a dataset of which only the name is known, and a rate
    beside a limit of concurrent requests.
    """
    read = ServingCommand.read(command) if isinstance(command, str) else command
    if read.program != "vllm-bench":
        raise PlanError(f"{read.program} sends no requests; write a command of `vllm bench serve`")
    given = {**DEFAULTS, **read.flags}
    if (dataset := given["--dataset-name"]) != "random":
        raise PlanError(
            f"--dataset-name is {cut(str(dataset))!r}, whose lengths are not known; write random, "
            "or read the trace with Traffic.read"
        )
    ratio = given["--random-range-ratio"]
    drawn = {
        "requests": given["--num-prompts"],
        "prompt": Lengths.vllm(given["--random-input-len"], ratio),
        "output": Lengths.vllm(given["--random-output-len"], ratio),
        "seed": given["--seed"],
    }
    rate, users = given["--request-rate"], given.get("--max-concurrency")
    if rate == math.inf:
        if users is None:
            return Traffic.burst(**drawn)
        return Traffic.closed_loop(users=min(users, drawn["requests"]), **drawn)
    if users is not None:
        raise PlanError(
            f"--request-rate is {rate:g} and --max-concurrency {users}, which is neither an open "
            "nor a closed loop; leave one of them out"
        )
    return Traffic.poisson(rate=rate, burstiness=given["--burstiness"], **drawn)
