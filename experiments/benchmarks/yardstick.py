"""A fixed amount of plain Python, to tell slow code from a slow machine.

    python experiments/benchmarks/yardstick.py

Prints its user CPU seconds. It runs in a process of its own: beside many other objects the same
calls take up to twice as long.
"""

import resource


def user_seconds() -> float:
    """Return the user CPU seconds of this process and of its ended children."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(each).ru_utime for each in who)


def yardstick() -> int:
    """Do a fixed amount of plain Python, as simulators do: calls, dicts, tuples, integers."""
    state: dict[tuple[int, int], int] = {}

    def step(at: int, value: int) -> int:
        key = (at & 255, value & 7)
        state[key] = state.get(key, 0) + at
        return (value * 1103515245 + 12345 + state[key]) & 0x7FFFFFFF

    value = 1
    for at in range(400_000):
        value = step(at, value)
    return value


if __name__ == "__main__":
    began = user_seconds()
    yardstick()
    print(user_seconds() - began)
