"""The trace against the Trace Event Format, and against the names that XProf uses."""

import gzip
import json
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from replays import small_replay
from reports import trace_bytes

import tpusim as ts
from tpusim.base import TpusimError
from tpusim.report import trace
from tpusim.results import Result

MODEL = ts.models.Transformer(layers=9, embed=1024, mlp=4096, heads=8, kv_heads=2, vocab=1003)

FIELDS = {
    "X": {"name": str, "ph": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
    "C": {"name": str, "ph": str, "pid": int, "tid": int, "ts": float, "args": dict},
    "M": {"name": str, "ph": str, "pid": int, "tid": int, "args": dict},
}
"""What the format asks of complete events, counters and metadata."""

METADATA = {
    "process_name": {"name": str}, "process_sort_index": {"sort_index": int},
    "thread_name": {"name": str}, "thread_sort_index": {"sort_index": int},
}  # fmt: skip


@cache
def result() -> Result:
    plan = ts.Plan(mesh={"fsdp": 8, "tensor": 4}, seq_len=256, global_batch=64, lowering="ideal")
    return ts.simulate(MODEL, plan, ts.Slice("v5e", "4x8"))


def events(kind: str, **given: Any) -> list[dict[str, Any]]:
    return [event for event in trace(result(), **given)["traceEvents"] if event["ph"] == kind]


def threads(run: Result) -> dict[int, str]:
    return {
        event["tid"]: event["args"]["name"]
        for event in trace(run)["traceEvents"] if event["name"] == "thread_name"
    }  # fmt: skip


@pytest.mark.parametrize("expand", ["ends", "all"])
def test_every_event_has_the_fields_of_its_kind_and_no_others(expand: Any) -> None:
    document = json.loads(gzip.decompress(trace_bytes(result(), expand)))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        assert {field: type(value) for field, value in event.items()} == FIELDS[event["ph"]]
        if event["ph"] == "M":
            assert {key: type(v) for key, v in event["args"].items()} == METADATA[event["name"]]
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        else:
            assert event["ts"] >= 0
            assert event["dur"] > 0


def test_metadata_come_first_and_the_rest_is_sorted_by_time() -> None:
    written = trace(result())["traceEvents"]
    kinds = [event["ph"] == "M" for event in written]
    assert kinds == sorted(kinds, reverse=True)
    times = [event["ts"] for event in written if event["ph"] != "M"]
    assert times == sorted(times)


def test_processes_and_threads_are_named_once_as_xprof_names_them() -> None:
    named = [event for event in events("M") if event["name"] == "process_name"]
    assert [event["args"]["name"] for event in named] == ["/device:TPU:0"]
    names = list(threads(result()).values())
    assert sorted(names)[-2:] == ["Steps", "XLA Ops"]
    streams = {record.stream for record in result().timeline.tasks} - {"core"}
    assert streams
    assert {name.split(" (")[0] for name in names[1:-1]} == {f"Async XLA Ops {s}" for s in streams}
    assert len(names) == len(set(names))
    used = {event["tid"] for event in events("X")}
    assert used == set(threads(result()))


def test_slices_are_named_by_the_program_and_say_what_they_are() -> None:
    by_name = {event["name"]: event["args"] for event in events("X")}
    matmul = by_name["layer/wi"] if "layer/wi" in by_name else by_name["layer/wi_0"]
    assert matmul["phase"] == "forward"
    assert matmul["label"] == "matmul"
    assert matmul["bytes"] > 0
    moving = [args for args in by_name.values() if "axes" in args]
    assert {args["axes"] for args in moving} == {"fsdp", "tensor"}
    assert {args["kind"] for args in moving} >= {"all-gather", "all-reduce"}
    assert all(args["bytes"] > 0 and args["repeats"] > 0 for args in moving)


def test_what_is_left_out_is_said() -> None:
    gaps = [event for event in events("X") if "more iterations" in event["name"]]
    assert any(event["tid"] == 1 for event in gaps)
    loops = {fold.loop: fold for fold in result().timeline.stats.folds}
    fold = loops["layers"]
    trips = (fold.repeats - 1) * fold.trips
    left_out = [event for event in gaps if event["tid"] == 1 and event["args"]["trips"] == trips]
    assert left_out
    assert left_out[0]["name"].startswith(f"{trips} more iterations like the first, ")
    assert round(left_out[0]["dur"] * 10**6) == (fold.repeats - 1) * fold.period_ps
    assert not [event for event in events("X", expand="all") if "more iterations" in event["name"]]


def test_the_core_waits_in_slices_that_say_so() -> None:
    waits = [event for event in events("X", expand="all") if event["name"].startswith("wait for ")]
    assert {event["tid"] for event in waits} == {1}
    total = sum(round(event["dur"] * 10**6) for event in waits)
    assert total == sum(wait.total_ps for wait in result().timeline.waits)


def test_the_counter_is_the_level_of_hbm() -> None:
    levels = [event["args"]["bytes"] for event in events("C") if event["name"] == "HBM"]
    assert {n for event in events("C") if not (n := event["name"]).startswith("busy ")} == {"HBM"}
    assert max(levels) == result().hbm_peak_bytes


def test_the_same_result_gives_the_same_bytes_and_few_of_them() -> None:
    assert trace_bytes(result()) == trace_bytes(result())
    assert len(trace_bytes(result())) < 50_000


def test_another_way_to_unroll_is_refused() -> None:
    with pytest.raises(TpusimError, match=r"expand is 'everything' .*all, ends"):
        trace(result(), "everything")  # type: ignore[arg-type]


@pytest.mark.parametrize("expand", ["ends", "all"])
def test_slices_of_a_thread_never_overlap_in_floating_point(expand: Any) -> None:
    """Bit for bit: a viewer adds `dur` to `ts` and compares with the next `ts`."""
    threads: dict[tuple[int, int], list[Any]] = {}
    for event in events("X", expand=expand):
        threads.setdefault((event["pid"], event["tid"]), []).append(event)
    for slices in threads.values():
        for one, following in pairwise(slices):
            assert one["ts"] + one["dur"] <= following["ts"]


def test_counters_have_the_busy_share_of_each_link() -> None:
    shares: dict[str, list[float]] = {}
    for event in events("C"):
        if event["name"].startswith("busy "):
            shares.setdefault(event["name"], []).append(event["args"]["share"])
    assert {"busy HBM", "busy ICI x+"} <= set(shares)
    assert all(0 <= share <= 1 for each in shares.values() for share in each)


def nested(events: list[dict[str, Any]]) -> bool:
    """Whether a viewer that nests by time takes the slices of a thread as they are.

    As speedscope's importer does (src/import/trace-event.ts): only events B, E and X count, an X is
    a B at `ts` and an E at `ts + dur`, times are in microseconds, and each E must end what began
    last; where an E and a B are at one time, the E comes first unless its slice began there.
    """
    stack: list[float] = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        if stack and event["ts"] + event["dur"] > stack[-1]:
            return False
        stack.append(event["ts"] + event["dur"])
    return True


@pytest.mark.parametrize("expand", ["ends", "all"])
def test_slices_nest_by_the_rules_of_a_viewer(expand: Any) -> None:
    threads: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in trace(small_replay(), expand)["traceEvents"]:
        assert {"ph", "pid", "tid", "name", "args"} <= event.keys() or event["ph"] in "sf"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
        else:
            assert event["ph"] in ("M", "C", "s", "f")
    assert all(nested(events) for events in threads.values())
    crossing = [{"ts": 0.0, "dur": 2.0}, {"ts": 1.0, "dur": 2.0}]
    assert not nested(crossing)
    assert nested([*crossing[:1], {"ts": 2.0, "dur": 2.0}, {"ts": 0.0, "dur": 1.0}])


@pytest.mark.parametrize(("schedule", "parts"), [("gpipe", 1), ("interleaved", 2), ("zb-h1", 1)])
@pytest.mark.parametrize("expand", ["ends", "all"])
def test_the_operations_of_a_stage_have_no_gaps(schedule: str, parts: int, expand: str) -> None:
    """Slots whose operations are not shown have a slice each."""
    model = MODEL.replace(layers=8)
    plan = ts.Plan(
        mesh={"stage": 4, "fsdp": 4}, seq_len=256, global_batch=64, microbatches=8,
        schedule=schedule, virtual_stages=parts,
    )  # fmt: skip
    found = trace(ts.simulate(model, plan, ts.Slice("v5e", "4x4")), expand)["traceEvents"]
    spans = [event for event in found if event["ph"] == "X"]
    for stage in range(4):
        (step,) = (e for e in spans if (e["pid"], e["tid"]) == (stage, 0))
        ops = sorted(
            (e["ts"], e["ts"] + e["dur"]) for e in spans if (e["pid"], e["tid"]) == (stage, 1)
        )
        assert ops[0][0] == 0
        assert ops[-1][1] >= step["dur"]
        assert all(before[1] == after[0] for before, after in pairwise(ops))
