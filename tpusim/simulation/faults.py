"""What a fault of the torus costs a plan: its step with broken parts beside the healthy one."""

from dataclasses import dataclass

from tpusim.base.checked_call import checked_call
from tpusim.hardware import Slice, degraded
from tpusim.models import Architecture
from tpusim.plan import Plan
from tpusim.simulation.arguments import check_arguments
from tpusim.simulation.front_door import simulate


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The step of a plan on a slice with a fault, and on the healthy slice.

    pod: the slice with the fault.
    step_s, healthy_s: seconds of a step.
    """

    pod: Slice
    step_s: float
    healthy_s: float

    @property
    def factor(self) -> float:
        """The time of a step over that on the healthy slice; 1 without any loss."""
        return self.step_s / self.healthy_s


@checked_call
def slowdown(model: Architecture | str, plan: Plan, pod: Slice | str, fault: str) -> Slowdown:
    """Return what a fault costs a plan in the dimension where it costs most.

    fault: `link` for one optical link, `switch` for an optical circuit switch; see
        `hardware.degraded`.

    The plan is simulated once on the healthy slice and once with the fault in each dimension, on
    the placement of the healthy one. Raise PlanError as `simulate` does, and HardwareError for an
    unknown fault and for a slice that ends with its first broken link.
    """
    model, plan, pod = check_arguments(model, plan, pod)
    faulty = [degraded(pod, fault, dim) for dim in range(len(pod.topology.dims))]
    steps = [simulate(model, plan, each).step_time_s for each in faulty]
    worst = max(range(len(faulty)), key=steps.__getitem__)
    return Slowdown(faulty[worst], steps[worst], simulate(model, plan, pod.healthy).step_time_s)
