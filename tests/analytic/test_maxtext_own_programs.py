"""HBM of MaxText's own programs, compiled by its `train_compile` for slices without TPUs.

MaxText 0.2.5 with libtpu 0.0.52, and for the model of 272M parameters, which ran on v6e, 0.2.4 with
libtpu 0.0.42.1: the total of the memory usage report, and `memory_analysis()`.
"""

import pytest

from tpusim import simulate
from tpusim.maxtext import from_maxtext
from tpusim.results import PlanResult

GIB = 2**30
FOUR_LAYERS = {
    "base_emb_dim": 2048, "base_mlp_dim": 8192, "base_num_query_heads": 16, "base_num_kv_heads": 8,
    "head_dim": 128, "base_num_decoder_layers": 4, "max_target_length": 4096,
    "per_device_batch_size": 2, "attention": "flash", "remat_policy": "full",
}  # fmt: skip
OVER_DATA = {"vocab_size": 65536, "ici_fsdp_parallelism": 1, "ici_data_parallelism": 8}
SAVED = {"remat_policy": "minimal_with_context"}
OF_272M = {
    "decoder_block": "llama2", "base_emb_dim": 1024, "base_mlp_dim": 2816, "head_dim": 256,
    "base_num_query_heads": 8, "base_num_kv_heads": 8, "base_num_decoder_layers": 12,
    "vocab_size": 32768, "fused_qkv": True, "fused_mlp": True, "max_target_length": 2048,
    "ici_data_parallelism": 8, "ici_fsdp_parallelism": 1, "attention": "flash",
    "sa_block_q": 1024, "sa_block_q_dkv": 2048, **SAVED,
}  # fmt: skip


def simulated(pod: str, **keys: object) -> PlanResult:
    given = from_maxtext(None, keys, pod=pod)
    return simulate(given.model, given.plan, given.pod)


@pytest.mark.parametrize(
    ("pod", "keys", "gib"),
    [
        ("v4-16", OVER_DATA, 9.31),
        ("v4-16", OVER_DATA | {"cast_logits_to_fp32": False}, 9.31),
        ("v4-16", OVER_DATA | {"fused_mlp": True, "fused_qkv": True}, 9.24),
        ("v4-16", OVER_DATA | {"num_vocab_tiling": 4}, 8.77),
        ("v4-16", OVER_DATA | {"scan_layers": False}, 8.13),
        ("v5p-16", OVER_DATA | SAVED | {"vocab_size": 32000}, 8.87),
        ("v5p-16", {"vocab_size": 128256}, 6.05),
        ("v6e-16", OVER_DATA | SAVED | {"ici_fsdp_parallelism": 4, "ici_data_parallelism": 4},
         5.43),
    ],
)  # fmt: skip
def test_plans_need_what_its_programs_do(pod: str, keys: dict[str, object], gib: float) -> None:
    found = simulated(pod, **FOUR_LAYERS | keys)
    assert found.hbm_peak_bytes / GIB == pytest.approx(gib, rel=0.04)


def test_the_program_of_272m_needs_less_than_it_prints() -> None:
    """19.85 GiB by its buffers, and 24.55 as it adds up, of which its run printed 24.6."""
    found = simulated("v6e-8", per_device_batch_size=16, **OF_272M)
    assert found.hbm_peak_bytes / GIB == pytest.approx(19.85, rel=0.02)
    assert found.reported_hbm_bytes / GIB == pytest.approx(24.55, rel=0.03)
    assert found.reported_hbm_bytes - found.reported_temp_bytes == pytest.approx(3.26e9, rel=0.01)


@pytest.mark.parametrize(("sequences", "printed"), [(8, 14.8), (16, 24.6)])
def test_it_prints_what_its_run_did(sequences: int, printed: float) -> None:
    found = simulated("v6e-8", per_device_batch_size=sequences, **OF_272M)
    assert found.reported_hbm_bytes / GIB == pytest.approx(printed, rel=0.03)
