"""Steps beside an input pipeline: what waits, what it says, and what it refuses."""

from itertools import pairwise
from math import inf

import pytest

import tpusim as ts
from tpusim.base import PlanError
from tpusim.costs import CORE
from tpusim.report import plot_timeline, timeline_data, trace
from tpusim.results import PICO

FAST = ts.Input(
    decode_s=0.0, read_latency=0.0, reader_bandwidth=inf, storage_bandwidth=inf, batch_rate=inf
)
RESNET = ts.models.load("resnet-50")
V3 = ts.Slice("v3", "4x4")
PLAN = ts.Plan(mesh={"data": 32}, global_batch=4096)
ALONE = ts.simulate(RESNET, PLAN, V3)


def fed(plan: ts.Plan = PLAN, pod: ts.Slice = V3, **keys: object) -> ts.PlanResult:
    return ts.simulate(RESNET, plan, pod, input=ts.Input(kind="jpeg").replace(**keys))


@pytest.mark.parametrize(
    ("mesh", "keys"),
    [
        ({"fsdp": 16}, {}),
        ({"fsdp": 8, "tensor": 2}, {"microbatches": 2}),
        ({"stage": 4, "fsdp": 4}, {"microbatches": 4, "schedule": "1f1b"}),
    ],
)
def test_an_infinitely_fast_input_changes_nothing(
    mesh: dict[str, int], keys: dict[str, object]
) -> None:
    plan = ts.Plan(mesh=mesh, global_batch=64, seq_len=512, **keys)
    model = ts.models.load("llama3-8b").replace(layers=4)
    pod = ts.Slice("v5e", "4x4")
    alone, found = (ts.simulate(model, plan, pod, input=given) for given in (None, FAST))
    assert found.timeline.total_ps == alone.timeline.total_ps
    assert found.breakdown_s == alone.breakdown_s
    assert found.link_use == alone.link_use
    assert found.input is not None
    assert found.input.starved_by == ""


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_a_starved_step_lasts_as_long_as_its_slowest_stage(workers: int) -> None:
    found = fed(workers=workers, decode_s=2e-3, prefetch=4)
    assert found.input is not None
    assert found.step_time_s == pytest.approx(4096 / 4 * 2e-3 / workers, rel=1e-3)
    assert found.input.starved_by == "decode"
    assert found.breakdown_s["exposed input"] == pytest.approx(found.input.exposed_s)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)
    assert found.error_range is None


def test_each_stage_can_starve_a_step() -> None:
    slow = {
        "read": {"readers": 1},
        "decompress": {"compression": "zlib", "decompress_rate": 1e6},
        "decode": {"workers": 2},
        "batch": {"batch_rate": 1e8},
    }
    for stage, keys in slow.items():
        assert fed(**keys).input.starved_by == stage
    narrow = ts.Slice(V3.chip.replace(pcie_bandwidth="100 MB/s"), "4x4")
    assert fed(pod=narrow).input.starved_by == "copy"


def test_the_core_has_no_gap_and_the_hosts_are_in_the_trace() -> None:
    found = fed(workers=4)
    spans = sorted(
        (start, start + each.duration_ps)
        for each in (*found.timeline.tasks, *found.timeline.waits)
        if each.stream == CORE or each in found.timeline.waits
        for start in each.starts()
    )
    assert spans[0][0] == 0
    assert spans[-1][1] == found.timeline.total_ps
    assert all(end == start for (_, end), (start, _) in pairwise(spans))
    threads = {
        event["args"]["name"]
        for event in trace(found)["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert {f"Host {stage}" for stage in ("read", "decode", "batch", "copy")} <= threads


def test_the_timeline_has_a_row_for_each_stage() -> None:
    """In the order of the pipeline, busy as long as the result says."""
    found = fed(workers=4)
    (window,) = timeline_data(found)
    assert list(window.hosts) == [f"host {name}" for name in found.input.busy]
    for stage, slices in window.hosts.items():
        worked = sum(each.length_ps for each in slices) * PICO
        busy = found.input.busy[stage.removeprefix("host ")] * found.step_time_s
        assert busy - 1e-9 <= worked <= found.step_time_s, stage
    rows = [label.get_text() for label in plot_timeline(found)[0].get_yticklabels()]
    assert rows[: 1 + len(window.hosts)] == ["core", *window.hosts]
    assert timeline_data(ALONE)[0].hosts == {}


def test_an_unknown_memory_of_hosts_is_said() -> None:
    known = ts.Slice(V3.chip.replace(host_bytes="340 GB"), "4x4")
    held = fed().input.held_bytes
    assert held == pytest.approx(3 * 1024 * 224 * 224 * 3 * 2, rel=0.01)
    assert "is not checked" in str(fed())
    assert "is not checked" not in str(fed(pod=known))
    with pytest.raises(PlanError, match=r"on a host that has 1 GiB: 3 batches"):
        fed(pod=ts.Slice(V3.chip.replace(host_bytes="1 GiB"), "4x4"), prefetch=2, shuffle=10**6)


def test_one_slow_host_holds_up_all() -> None:
    even, slow = fed(workers=8), fed(workers=8, slow_host=3.0)
    assert slow.step_time_s == pytest.approx(3 * even.step_time_s, rel=1e-3)
    assert slow.input.host == "slow host"
    assert "starved by decode of the slow host" in str(slow.input)


def test_hosts_with_fewer_files_read_more_slowly() -> None:
    """Six files on four hosts are two on two of them, and one on the others."""
    even, uneven = (fed(files=files, reader_bandwidth=10e6) for files in (8, 6))
    assert even.step_time_s < uneven.step_time_s
    assert uneven.input.host == "host with 1 file"


def test_compression_trades_reads_for_threads() -> None:
    """By the ratio where reads starve; JPEG does not shrink, and is only unpacked."""
    model = ts.models.load("llama3-8b").replace(layers=1)
    plan = ts.Plan(mesh={"fsdp": 16}, global_batch=512, seq_len=8192)
    pod = ts.Slice("v5e", "4x4")
    plain = ts.Input(storage_bandwidth=1e5, prefetch=3)
    packed = plain.replace(compression="zstd", compression_ratio=3.0)
    slow, quick = (ts.simulate(model, plan, pod, input=given) for given in (plain, packed))
    assert slow.input.starved_by == quick.input.starved_by == "read"
    assert slow.step_time_s == pytest.approx(3 * quick.step_time_s, rel=1e-3)
    assert ts.Input(kind="jpeg", compression="zstd").ratio == 1


def test_records_of_a_host_are_its_part_of_the_batch() -> None:
    """Hosts whose devices share records each read them."""
    assert fed().input.records == 1024
    model = ts.models.load("llama3-8b").replace(layers=1)
    pod = ts.Slice("v5e", "4x8")
    shared = ts.Plan(mesh={"data": 2, "tensor": 16}, global_batch=64, seq_len=128)
    found = ts.simulate(model, shared, pod, input=ts.Input())
    assert (found.input.hosts, found.input.records) == (4, 32)


def test_the_shuffle_buffer_delays_the_first_batch_alone() -> None:
    plain, shuffled = fed(), fed(shuffle=50_000)
    assert shuffled.step_time_s == plain.step_time_s
    assert shuffled.input.first_batch_s > plain.input.first_batch_s + 1


@pytest.mark.thorough
def test_reads_that_vary_have_no_steady_state() -> None:
    even = {"readers": 4, "prefetch": 1}
    found = fed(**even, read_variation=1.0)
    assert not found.input.steady
    assert found.step_time_s > fed(**even).step_time_s
    assert found.step_time_s == fed(**even, read_variation=1.0).step_time_s


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"workers": 0}, "input.workers is 0; it must be a whole number of at least 1"),
        ({"readers": 0}, "input.readers is 0; it must be a whole number of at least 1"),
        ({"prefetch": -1}, "input.prefetch is -1; write a whole number of at least 0"),
        ({"kind": "jpg"}, "input.kind is 'jpg': did you mean 'jpeg'?"),
        ({"decode_s": -1.0}, "input.decode_s is -1.0; write seconds"),
        ({"batch_rate": 0.0}, "input.batch_rate is 0.0; write a number above 0"),
        ({"read_bytes": inf}, "input.read_bytes is inf; write a finite number above 0"),
        ({"slow_host": 0.5}, "input.slow_host is 0.5; write a finite number of at least 1"),
        ({"decompressors": 2}, "input.decompressors is given, but records are not compressed"),
        ({"files": 3}, "input.files is 3, but 4 hosts read"),
        ({"workers": 97}, "97 threads that decode on a host of 4 v3 chips, which has 96 vCPUs"),
        ({"kind": "tokens"}, "the model reads none"),
        ({"read_variation": -1}, "input.read_variation is -1; write a number from 0 to 100"),
        ({"read_variation": 1e290}, "input.read_variation is 1e+290; write a number from 0 to 100"),
    ],
)
def test_a_mistake_is_one_sentence(keys: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError) as caught:
        fed(**keys)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_batch_that_no_host_can_hold_is_refused() -> None:
    small = ts.Slice(V3.chip.replace(host_bytes="1 GB"), "4x4")
    with pytest.raises(PlanError, match=r"the input needs .* on a host that has 954 MiB"):
        fed(pod=small, prefetch=8)


def test_seconds_of_the_plan_and_a_pipeline_are_one_too_many() -> None:
    with pytest.raises(PlanError, match=r"plan\.input_s is 1, and there is an input pipeline"):
        fed(PLAN.replace(input_s=1.0))


@pytest.mark.thorough
def test_advice_keeps_the_input() -> None:
    """No faster machine makes a starved step shorter."""
    changes = fed(workers=4).advice(quick=True).changes
    assert all(abs(change.saves) < 1e-3 for change in changes if change.kind == "machine")


@pytest.mark.thorough
def test_advice_on_a_starved_step_names_what_feeds_it() -> None:
    """Twice the threads halve a step that decoding starves, and more prefetch is worth nothing."""
    found = fed(workers=4, prefetch=4)
    first, *others = found.advice(quick=True).changes
    changes = {change.settings: change for change in (first, *others)}
    assert changes["input.workers=8",].saves == pytest.approx(0.5, abs=1e-3)
    assert changes["input.prefetch=8",].saves == pytest.approx(0.0, abs=1e-3)
    assert first.settings == ("input.workers=8",)
    alone = fed(workers=4, prefetch=0).advice(quick=True)
    more = next(each for each in alone.changes if each.settings == ("input.prefetch=1",))
    assert more.saves > 0.1


@pytest.mark.thorough
def test_advice_on_reads_and_the_batch_is_simulated() -> None:
    """Reads whose first byte takes 50 ms: 4 times the bytes are nearly 4 times as fast, twice the
    reads in flight twice; and twice the batch is starved as long for each example."""
    found = fed(read_bytes=64 * 2.0**10, prefetch=4)
    assert found.input.starved_by == "read"
    advice = found.advice(quick=True)
    changes = {change.settings: change for change in advice.changes}
    assert changes["input.read_bytes=262144.0",].saves == pytest.approx(0.75, abs=0.02)
    assert changes["input.readers=32",].saves == pytest.approx(0.5, abs=1e-3)
    assert changes["plan.global_batch=8192",].saves == pytest.approx(0.0, abs=1e-3)
    assert any(change.what == "2 microbatches" for change in advice.changes)


@pytest.mark.thorough
def test_advice_on_compression_is_simulated() -> None:
    model = ts.models.load("llama3-8b").replace(layers=1)
    plan = ts.Plan(mesh={"fsdp": 16}, global_batch=512, seq_len=8192)
    given = ts.Input(storage_bandwidth=1e5, prefetch=3)
    found = ts.simulate(model, plan, ts.Slice("v5e", "4x4"), input=given).advice(quick=True)
    packed = next(each for each in found.changes if each.settings == ('input.compression="zstd"',))
    assert packed.saves == pytest.approx(1 - 1 / 2.877, rel=1e-2)


def test_the_alone_step_is_the_floor() -> None:
    assert fed().timeline.total_ps == ALONE.timeline.total_ps
    assert fed().step_time_s == ALONE.timeline.total_ps * PICO
