"""The critical path of steps that can be worked out by hand."""

import pytest
from accounts import LaneBounds, LaneMachine, TaskBound
from plans import plan_of, small
from replays import small_replay

from tpusim.costs import HBM, CostedProgram, Task, TaskLoop
from tpusim.engine import run
from tpusim.hardware import Slice, load_chip
from tpusim.models import Transformer
from tpusim.program import Dep, Phase
from tpusim.results import Limit, limits
from tpusim.results.critical_path import lane_path, tasks_by_name
from tpusim.simulation import simulate

US = 1_000_000
RATE = 1e12
LINKS = (("ici:x+", RATE), ("ici:y+", RATE), (HBM, RATE))
LAYERS = 10


def work(us: float, *deps: Dep) -> Task:
    return Task(
        name="work", phase=Phase.FORWARD, label="matmul", work_s=us * 1e-6, deps=deps,
        bytes=us * 1e-6 * RATE, uses=((HBM, 1),),
    )  # fmt: skip


def gather(us: float, name: str = "gather", link: str = "ici:x+", *deps: Dep) -> Task:
    """A transfer beside the core, a tenth of which is its launch."""
    return Task(
        name=name, phase=Phase.FORWARD, label="fsdp", stream=f"ici:{name}", delay_s=us * 1e-7,
        bytes=us * 0.9e-6 * RATE, uses=((link, 1),), deps=deps,
    )  # fmt: skip


def path(*body: Task | TaskLoop, fold: bool = True) -> dict[tuple[str, str], int]:
    program = CostedProgram(name="step", body=body, links=LINKS)
    timeline = run([program], fold=fold)
    machine = LaneMachine(load_chip("v4").device, dict(LINKS))
    found = lane_path(timeline, 0, LaneBounds(tasks_by_name(program), {}, machine))
    assert sum(found.values()) == timeline.total_ps
    return dict(found)


def layers(compute_us: float, gather_us: float) -> tuple[Task | TaskLoop, ...]:
    """Each layer reads weights that were gathered beside the layer before, one after another."""
    weights = gather(gather_us, "gather", "ici:x+", Dep("gather", 1))
    loop = TaskLoop(
        name="layers", trips=LAYERS,
        body=(weights, work(compute_us, Dep("gather", 1), Dep("first"))),
    )  # fmt: skip
    return gather(gather_us, "first", "ici:y+"), loop


@pytest.mark.parametrize("fold", [True, False])
def test_where_the_network_is_slower_the_path_is_all_gathers(fold: bool) -> None:
    """The core waits 4 us of each 10, and yet all gathers but one are on the path.

    The first gather takes 10 us and its work 6; from there the gathers of the layers 1 to 9 follow
    one another.
    """
    assert path(*layers(compute_us=6, gather_us=10), fold=fold) == {
        ("ICI y", "fsdp"): 9 * US,
        ("HBM", "matmul"): 6 * US,
        ("ICI x", "fsdp"): (LAYERS - 1) * 9 * US,
        ("launches and latency", "fsdp"): LAYERS * US,
    }


@pytest.mark.parametrize("fold", [True, False])
def test_where_the_core_is_slower_the_path_is_all_work(fold: bool) -> None:
    """The path is the first gather, and then the work of each layer."""
    assert path(*layers(compute_us=10, gather_us=6), fold=fold) == {
        ("ICI y", "fsdp"): 6 * US * 9 // 10,
        ("launches and latency", "fsdp"): 6 * US // 10,
        ("HBM", "matmul"): LAYERS * 10 * US,
    }


def test_the_path_goes_through_the_transfers_that_wait_for_each_other() -> None:
    """x for 10 us, then y for 20 us, beside 5 us of work; then 7 us of work that needs y."""
    found = path(
        gather(10, "one"),
        gather(20, "two", "ici:y+", Dep("one")),
        work(5),
        Task(name="last", phase=Phase.FORWARD, label="vector", work_s=7e-6, deps=(Dep("two"),)),
    )
    assert found == {
        ("ICI x", "fsdp"): 9 * US,
        ("ICI y", "fsdp"): 18 * US,
        ("launches and latency", "fsdp"): 3 * US,
        ("launches and latency", "vector"): 7 * US,
    }


def test_dimensions_that_are_loaded_alike_bound_together() -> None:
    machine = LaneMachine(load_chip("v4").device, dict(LINKS))
    task = gather(10)
    both = Task(name="both", phase=Phase.FORWARD, label="fsdp", bytes=1.0,
                uses=(("ici:x+", 64), ("ici:y+", 64), (HBM, 3)))  # fmt: skip
    assert machine.slowest_link(task) == "ICI x"
    assert machine.slowest_link(both) == "ICI x,y"
    assert TaskBound(3, "HBM").parts(10) == (("launches and latency", 3), ("HBM", 7))
    assert TaskBound(30, "HBM").parts(10) == (("launches and latency", 10), ("HBM", 0))


def shares(found: tuple[Limit, ...]) -> dict[str, float]:
    return {limit.resource: limit.share for limit in found}


def test_one_device_with_large_matmuls_is_bound_by_its_matrix_unit() -> None:
    model = Transformer(layers=4, embed=8192, mlp=131072, heads=64, head_dim=128, vocab=32000)
    plan = plan_of({"fsdp": 1}, seq_len=2048, global_batch=64)
    result = simulate(model, plan, Slice("v6e", "1x1"))
    found = shares(limits(result))
    assert found["MXU"] > 0.9
    assert not [resource for resource in found if resource.startswith("ICI")]


def test_few_tokens_over_many_chips_are_bound_by_the_network() -> None:
    model = small(layers=8, embed=4096, mlp=16384, heads=32, head_dim=128)
    result = simulate(model, plan_of({"fsdp": 64}, global_batch=64), Slice("v4", "4x4x4"))
    first = limits(result)[0]
    assert first.resource == "ICI x,y,z"
    assert first.share > 0.5
    assert str(first) == f"ICI x,y,z bounds {first.share:.1%} of the step"


def test_a_slow_host_bounds_the_whole_step() -> None:
    plan = plan_of({"fsdp": 4}, input_s=2.0)
    (limit,) = limits(simulate(small(), plan, Slice("v4", "2x2x1")))
    assert (limit.resource, limit.share) == ("host", 1.0)
    assert limit.does_ps["input"] == 2 * 10**12


def test_the_limits_of_a_replayed_program_sum_to_its_step() -> None:
    result = small_replay()
    assert sum(limit.picoseconds for limit in limits(result)) == result.timeline.total_ps
