"""What cannot be compiled is a sentence, also where nothing that compiles is installed."""

from importlib.metadata import PackageNotFoundError

import pytest

import tpusim as ts
from tpusim.errors import CompileError
from tpusim.xla import refusals, topology

POD = ts.Slice("v5e", "4x4")


def test_what_is_not_installed_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(topology, "version", version)
    with pytest.raises(CompileError, match=r"jax is not installed; pip install 'tpusim\[xla\]'"):
        ts.xla.compile(lambda x: x, 1.0, slice="v5e:2x2", mesh={"x": 4})


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (770.00G) exceeds available HBM (15.75G).",
            "step does not fit v5e:4x4: it needs 770 GiB of HBM a device, and 15.8 GiB can be used",
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 41.20G of 31.25G hbm. "
            "Exceeded hbm capacity by 9.95G.",
            "step does not fit v5e:4x4: it needs 41.2 GiB of HBM a device, and 31.2 GiB can",
        ),
        (
            "RESOURCE_EXHAUSTED: of another kind\nand more",
            "v5e:4x4: RESOURCE_EXHAUSTED: of another",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_its_sizes(said: str, sentence: str) -> None:
    with pytest.raises(CompileError) as raised, refusals.refusal("step", POD):
        raise RuntimeError(said)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_is_not_of_the_compiler_passes_through() -> None:
    with pytest.raises(ValueError, match="mine"), refusals.refusal("step", POD):
        raise ValueError("mine")
    with pytest.raises(ValueError, match="mine"), refusals.misfit("step"):
        raise ValueError("mine")


def test_several_slices_are_spelled_as_they_print() -> None:
    pod = ts.Slice("v5e", "4x4", num_slices=2)
    assert topology.as_slice("v5e:4x4 x 2") == topology.as_slice(str(pod)) == pod
    assert topology.as_slice("v5e-16 x 2") == pod
    with pytest.raises(ts.TpusimError, match="several are written 'v5e:16x16 x 2'"):
        topology.as_slice("v5e:4x4 x two")
