"""Engines: presets, their facts, buckets, pages and policies."""

from typing import Any

import pytest

from tpusim.base.errors import PlanError
from tpusim.server import StepLoad
from tpusim.serving.engines import Buckets, Engine, engine_names
from tpusim.serving.engines.page_sizes import page_size
from tpusim.serving.engines.presets import KINDS, presets


@pytest.mark.parametrize("name", engine_names())
def test_every_default_has_a_kind_and_a_source(name: str) -> None:
    engine = Engine.of(name)
    for key, fact in engine.facts.items():
        assert fact.kind in KINDS, key
        assert fact.source, key
    assert f"{engine.facts['priority'].kind}: " in str(engine)
    assert sum(key in engine.facts for key in ("host_s", "sequence_s", "request_s")) == 3


@pytest.mark.parametrize(
    ("asked", "preset"),
    [
        (("vllm-tpu", ""), "vllm-tpu"),
        (("vllm-tpu", "nightly-20991231"), "vllm-tpu"),
        (("vllm-tpu", "2025-04-11"), "vllm-tpu-xla"),
        (("vllm-tpu-xla", ""), "vllm-tpu-xla"),
        (("sglang-jax", "0.1.0"), "sglang-jax"),
        (("sglang-jax", "main 2026-01-13"), "sglang-jax-2025"),
        (("sglang-jax", "a85c1ba7"), "sglang-jax-2026-04"),
        (("jax-pope", ""), "jax"),
    ],
)
def test_a_version_chooses_the_preset(asked: tuple[str, str], preset: str) -> None:
    assert Engine.of(*asked).name == preset


def test_defaults_by_chip_and_what_is_inherited() -> None:
    old = Engine.of("vllm-tpu-xla", chip="v5e")
    assert (old.max_num_batched_tokens, old.priority) == (512, "decode")
    assert Engine.of("vllm-tpu-xla", chip="v6e").max_num_batched_tokens == 1024
    assert Engine.of("vllm-tpu-xla", chip="7x").max_num_batched_tokens == 2048


def test_changed_settings_lose_their_facts() -> None:
    engine = Engine.of("sglang-jax", page_size=128)
    assert engine.page_size == 128
    assert "page_size" not in engine.facts
    assert "page_size" in presets()["sglang-jax"].facts


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vlm-tpu", {}, "no serving engine 'vlm-tpu' is known; did you mean 'vllm-tpu'"),
        ("vllm-tpu", {"max_num_seq": 3}, "has no setting 'max_num_seq'; did you mean"),
        ("vllm-tpu", {"max_num_seqs": 0}, "max_num_seqs is 0; write a number from 1 up"),
        ("vllm-tpu", {"memory_fraction": 1.5}, "memory_fraction is 1.5; write a share"),
        ("vllm-tpu", {"host_s": -1.0}, "host_s is -1.0; write a number from 0 up"),
    ],
)
def test_wrong_settings_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Engine.of(name, **changes)


@pytest.mark.parametrize(
    ("name", "ranks", "buckets"),
    [
        (
            "vllm-tpu",
            1,
            Buckets(tokens=(16, 32, 64, 100), rows=(8, 16, 32, 48)),
        ),
        (
            "vllm-tpu",
            8,
            Buckets(tokens=(2, 4, 8, 16, 32, 64, 100), rows=(1, 2, 4, 8, 16, 32, 48)),
        ),
        (
            "sglang-jax",
            1,
            Buckets(tokens=(64, 100), decodes=(1, 2, 4, 8, 16, 32, 48), rows=(48,)),
        ),
        (
            "sglang-jax",
            4,
            Buckets(tokens=(64, 100), decodes=(1, 2, 4, 8, 12), rows=(12,)),
        ),
        ("jax", 1, Buckets()),
    ],
)
def test_buckets_of_a_rank(name: str, ranks: int, buckets: Buckets) -> None:
    engine = Engine.of(name, max_num_seqs=48, max_num_batched_tokens=100)
    assert engine.buckets(ranks) == buckets


@pytest.mark.parametrize(
    ("name", "given", "backends"),
    [
        ("sglang-jax", "", ("epmoe", "epmoe", "fused", "fused")),
        ("sglang-jax", "epmoe", ("epmoe", "epmoe", "epmoe", "epmoe")),
        ("sglang-jax", "fused", ("epmoe", "fused", "fused", "fused")),
        ("vllm-tpu", "epmoe", ("epmoe", "epmoe", "epmoe", "epmoe")),
    ],
)
def test_experts_of_many_devices_are_fused(
    name: str, given: str, backends: tuple[str, ...]
) -> None:
    """SGLang-JAX's recipes: `epmoe` up to 8 devices, `fused` from 16 on; vLLM's kernel is off."""
    engine = Engine.of(name, moe_backend=given)
    assert tuple(engine.backend(devices) for devices in (1, 8, 16, 32)) == backends
    assert Engine.of("vllm-tpu").moe_backend == "epmoe"


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("vllm-tpu", "paged"), ("sglang-jax", "paged"), ("jetstream-pytorch", "dot"),
        ("jax", "dot"), ("sax", "dot"),
    ],
)  # fmt: skip
def test_the_attention_of_an_engine(name: str, kernel: str) -> None:
    assert Engine.of(name).followed()["kernel"] == kernel


def test_an_unknown_backend() -> None:
    with pytest.raises(PlanError, match="moe_backend is 'gmm'; valid are"):
        Engine.of("sglang-jax", moe_backend="gmm")


def test_a_kernel_raises_the_smallest_batch() -> None:
    assert Engine.of("sglang-jax").buckets(4, least_decodes=32).decodes == (8, 16, 32, 64)


@pytest.mark.parametrize(
    ("load", "drafted", "sizes"),
    [
        (StepLoad(3, 300), 1, (4, 4)),
        (StepLoad(12, 300), 4, (16, 4)),
        (StepLoad(0, 0, 65), 1, (128, 8)),
        (StepLoad(5, 50, 60), 1, (128, 8)),
    ],
)
def test_a_load_goes_to_its_bucket(load: StepLoad, drafted: int, sizes: tuple[int, int]) -> None:
    buckets = Buckets(tokens=(64, 128), decodes=(1, 2, 4, 8), rows=(8,))
    assert buckets.of(load, 1, drafted) == sizes


def test_a_load_without_a_bucket_is_refused() -> None:
    with pytest.raises(PlanError, match="a step has 129 tokens of a rank, and the largest"):
        Buckets(tokens=(64, 128)).of(StepLoad(0, 0, 129))


@pytest.mark.parametrize(
    ("length", "seqs", "latent", "tokens"),
    [
        (2048, 256, False, 128),
        (128, 8, False, 16),
        (8192, 64, False, 256),
        (9216, 64, False, 16),
        (40960, 256, False, 128),
        (40960, 256, True, 1024),
        (0, 256, False, 64),
        (0, 8, False, 16),
    ],
)
def test_the_page_of_a_length(length: int, seqs: int, latent: bool, tokens: int) -> None:
    assert page_size("sixteenth", length, seqs, latent) == tokens
    engine = Engine.of("vllm-tpu", max_model_len=length, max_num_seqs=seqs)
    assert engine.page_tokens(latent=latent) == tokens


def test_an_unknown_rule_of_pages_is_refused() -> None:
    with pytest.raises(PlanError, match="no rule of page sizes is called 'half'"):
        page_size("half", 10, 10)


def test_the_host_of_a_policy() -> None:
    engine = Engine.of("sglang-jax", host_s=1e-9, schedule_s=3e-9, sequence_s=2e-9)
    policy = engine.policy(pages=7, page_size=64, ranks=2)
    assert (policy.host_ps, policy.schedule_ps, policy.sequence_ps) == (1000, 3000, 2000)
    assert (policy.pages, policy.page_size, policy.ranks) == (7, 64, 2)


def test_sequences_are_those_of_a_rank_or_of_all() -> None:
    for name, each in (("vllm-tpu", 256), ("sglang-jax", 64)):
        assert Engine.of(name).policy(pages=1, page_size=1, ranks=4).max_num_seqs == each


def test_how_engines_schedule() -> None:
    vllm = Engine.of("vllm-tpu").policy(pages=1, page_size=1)
    sglang = Engine.of("sglang-jax").policy(pages=1, page_size=1)
    assert (vllm.mixed, vllm.priority, vllm.reserve) == (True, "decode", None)
    assert (sglang.mixed, sglang.priority, sglang.reserve) == (False, "prefill", 0.7)


def test_slots_whose_whole_cache_is_read() -> None:
    """All slots decode, and each reads its cache to the end, however few tokens it holds."""
    engine = Engine.of("jetstream-pytorch", max_num_seqs=96)
    buckets = engine.buckets()
    few, many = StepLoad(2, 50), StepLoad(96, 96 * 1000)
    assert buckets.of(few) == buckets.of(many) == (96, 96)
    assert buckets.read(few) == buckets.read(many) == StepLoad(96, 96 * 2048)
    prompt = StepLoad(0, 0, 100, 100, 5050)
    assert buckets.read(prompt) == prompt
    assert Engine.of("vllm-tpu").buckets().read(few) == few
