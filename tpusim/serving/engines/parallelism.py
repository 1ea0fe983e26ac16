"""How the devices of a replica are divided, by the numbers that engines call parallel sizes."""

from dataclasses import dataclass
from typing import Any

from tpusim.base.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The division of a replica's devices, as engines state it.

    tensor: devices that share heads.
    attention_data: groups that have sequences and a cache of their own, and share MLPs and experts.
    data: copies of all weights.
    experts: devices that experts are divided over; 1 where each expert's matrices are divided.
    """

    tensor: int = 1
    attention_data: int = 1
    data: int = 1
    experts: int = 1

    def __post_init__(self) -> None:
        sizes = (self.tensor, self.attention_data, self.data, self.experts)
        if min(sizes) < 1:
            raise PlanError(f"a parallel size is {min(sizes)}; write a whole number from 1 up")
        if self.experts not in (1, self.tensor * self.attention_data):
            raise PlanError(
                f"experts are divided over {self.experts} of {self.tensor * self.attention_data} "
                f"devices; write an expert parallel size of 1 or "
                f"{self.tensor * self.attention_data}"
            )

    @classmethod
    def of_devices(
        cls, devices: int, *, tensor: int = 0, attention_data: int = 1, data: int = 1, ep: int = 1
    ) -> "Parallelism":
        """Return the division of a number of devices.

        tensor: devices that share heads; 0 for all that the other sizes leave. A number that counts
            the devices of all attention groups, as SGLang-JAX's does, is divided by their number.
        ep: devices that experts are divided over.

        Raise PlanError where the sizes do not multiply to the devices.

        >>> Parallelism.of_devices(32, tensor=32, attention_data=8, ep=32)
        Parallelism(tensor=4, attention_data=8, data=1, experts=32)
        """
        groups = attention_data * data
        if devices % groups:
            raise PlanError(f"{devices} devices cannot be divided into {groups} equal groups")
        rest = devices // groups
        if tensor not in (0, rest, rest * attention_data):
            raise PlanError(
                f"{tensor} x {groups} devices are needed, but there are {devices}; write a tensor "
                f"parallel size of {rest}"
            )
        return cls(tensor=rest, attention_data=attention_data, data=data, experts=ep)

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.tensor * self.attention_data * self.data

    @property
    def ranks(self) -> int:
        """Groups of devices with sequences of their own."""
        return self.attention_data * self.data

    def plan_keys(self) -> dict[str, Any]:
        """Return the keys of a `ServingPlan` with this division."""
        axes = {"data": self.data, "attn_data": self.attention_data, "tensor": self.tensor}
        mesh = {axis: size for axis, size in axes.items() if size > 1} or {"tensor": 1}
        return {"mesh": mesh, "expert_parallel": self.experts > 1}
