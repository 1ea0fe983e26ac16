"""A search over more than a thousand servers in a minute of one processor."""

import time

import pytest

import tpusim as ts


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("objective", "targets"),
    [
        ("cost", ts.Targets(ttft_p99_s=1.0, tpot_s=0.04)),
        ("cost", ts.Targets(ttft_p99_s=0.5, tpot_s=0.01)),
        ("cost", ts.Targets(ttft_p99_s=0.005)),
        (("cost", "tpot_s"), ts.Targets(ttft_p99_s=1.0, tpot_s=0.04)),
    ],
)
def test_a_thousand_servers_take_less_than_a_minute(
    objective: str | tuple[str, str], targets: ts.Targets
) -> None:
    traffic = ts.Traffic.poisson(
        rate=20.0, requests=1000, prompt=ts.Lengths.uniform(512, 1536), output=128
    )
    space = ts.ServerSpace(
        slices=["v5e-4", "v5e-8", "v6e-1", "v6e-4", "v6e-8", "v5p-8"],
        axes=["attn_data", "tensor"],
        vary={
            "kv_dtype": ["bf16", "fp8"],
            "weight_dtype": ["bf16", "int8"],
            "max_num_seqs": [32, 64, 128],
            "max_num_batched_tokens": [1024, 2048, 8192],
            "replicas": [1, 2],
        },
    )
    began = time.process_time()
    found = ts.search_servers("llama3.1-8b", space, traffic, targets, objective=objective)
    assert found.servers == len(space) >= 1000
    assert bool(found.best) == (found.nearest is None)
    assert time.process_time() - began < 60
