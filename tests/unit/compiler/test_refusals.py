"""What cannot be compiled is a sentence, also where nothing that compiles is installed."""

from importlib.metadata import PackageNotFoundError

import pytest

import tpusim as ts
from tpusim.base import CompileError
from tpusim.compiler import refusals, topologies

POD = ts.Slice("v5e", "4x4")


def test_what_is_not_installed_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(topologies, "version", version)
    with pytest.raises(CompileError, match=r"jax is not installed; pip install 'tpusim\[xla\]'"):
        ts.xla.compile(lambda x: x, 1.0, slice="v5e:2x2", mesh={"x": 4})


@pytest.mark.parametrize(("said", "why"), [("INVALID_ARGUMENT: no\nmore", "INVALID_ARGUMENT: no"),
                                           ("", "RuntimeError")])  # fmt: skip
def test_a_slice_that_libtpu_does_not_know_is_a_sentence(
    said: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**given: object) -> None:
        raise RuntimeError(said)

    jax = pytest.importorskip("jax.experimental.topologies")
    monkeypatch.setattr(jax, "get_topology_desc", refuse)
    with pytest.raises(CompileError, match=f"cannot describe v5p:4x4x8: {why}; pip install '"):
        topologies.devices_of(ts.Slice("v5p", "4x4x8"))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (770.00G) exceeds available HBM (15.75G).",
            "step does not fit v5e:4x4: it needs 770 GiB of HBM per device, and 15.8 GiB can",
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 41.20G of 31.25G hbm. "
            "Exceeded hbm capacity by 9.95G.",
            "step does not fit v5e:4x4: it needs 41.2 GiB of HBM per device, and 31.2 GiB can",
        ),
        (
            "RESOURCE_EXHAUSTED: of another kind\nand more",
            "v5e:4x4: RESOURCE_EXHAUSTED: of another",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_its_sizes(said: str, sentence: str) -> None:
    with pytest.raises(CompileError) as raised, refusals.explain_refusals("step", POD):
        raise RuntimeError(said)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_callback_without_shardings_is_said_to_lack_them() -> None:
    said = "a callback's result; give out_shardings"
    with pytest.raises(CompileError, match=said), refusals.explain_refusals("step", POD):
        raise AssertionError("Unhandled OpSharding type. Please open a bug report!")


@pytest.mark.parametrize("wrong", [{"fn": 3}, {"fn": len, "without_remat": "step"}])
def test_what_is_no_function_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(CompileError, match=f"{list(wrong)[-1]} is .*; give a function of arrays"):
        ts.xla.compile(wrong.pop("fn"), 1.0, slice="v5e:2x2", **wrong)  # type: ignore[arg-type]


def test_what_is_not_of_the_compiler_passes_through() -> None:
    with pytest.raises(ValueError, match="mine"), refusals.explain_refusals("step", POD):
        raise ValueError("mine")
    with pytest.raises(ValueError, match="mine"), refusals.explain_misfits("step"):
        raise ValueError("mine")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "One of pjit arguments with pytree key path a is incompatible with its sharding "
            "annotation NamedSharding(mesh=Mesh('x': 4), spec=P(None, None, 'x'), "
            "memory_kind=device): Sharding is only valid for values of rank at least 3, but was "
            "applied to a value of rank 2",
            "step: the sharding P(None, None, 'x') is for at least 3 dimensions, and its array has "
            "2; leave the others out",
        ),
        (
            "in_shardings leaf specifications are expected to be PartitionSpec instances or None, "
            "but got x",
            "expected to be PartitionSpec instances or None, but got x; see in_shardings",
        ),
        (
            "Received incompatible devices for jitted computation. Got ids [0, 1]",
            "step: a sharding is over other devices than the mesh; write a bare PartitionSpec",
        ),
        (
            "pytree structure error: different metadata at key path\n    pjit in_shardings[0]\n"
            "so the diff in the metadata at these pytree nodes is\n- ('y',)",
            "different metadata at key path in_shardings[0]; see in_shardings",
        ),
        (
            "The context mesh AbstractMesh('d': 4) should match the mesh passed to shard_map",
            "step: a shard_map has another mesh; leave it out there, or give it as mesh=",
        ),
        (
            "Jitted function has donate_argnums=(3,), but only accepts 1 positional arguments.",
            "donate is 3, and the function takes 1 arguments, which are numbered from 0",
        ),
        (
            "Error interpreting argument to <function f> as an abstract array. The problematic "
            "value is of type <class 'str'> and was passed to the function at path model.name.\n"
            "This typically means that a jit-wrapped function was called",
            "the argument model.name is a str, and no array; write its number in static=",
        ),
        (
            "Non-hashable static arguments are not supported. An error occurred\nTypeError: x",
            "an argument that static= names cannot be hashed; close over it instead",
        ),
        (
            "pytree structure error: different types at key path\n    pjit out_shardings\n\nso",
            "different types at key path out_shardings; see in_shardings",
        ),
    ],
)
def test_shardings_that_do_not_fit_are_one_sentence(said: str, sentence: str) -> None:
    with pytest.raises(CompileError) as raised, refusals.explain_misfits("step"):
        raise ValueError(said)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        *((axes, r"sizes of axes by name, such as {'fsdp': 16}") for axes in ({1: 16}, "x=16")),
        *(({"x": size}, "write a whole number from 1 up") for size in (-16, "16", 16.0)),
        ({"x": 8}, "the mesh has x=8 = 8, but there are 16 devices of "),
    ],
)
def test_a_mesh_is_sizes_by_name(axes: object, sentence: str) -> None:
    with pytest.raises(CompileError, match=sentence):
        ts.xla.make_mesh(POD, axes)  # type: ignore[arg-type]


def test_several_slices_are_spelled_as_they_print() -> None:
    pod = ts.Slice("v5e", "4x4", num_slices=2)
    assert topologies.as_slice("v5e:4x4 x 2") == topologies.as_slice(str(pod)) == pod
    assert topologies.as_slice("v5e-16 x 2") == pod
    with pytest.raises(ts.TpusimError, match="several are written 'v5e:16x16 x 2'"):
        topologies.as_slice("v5e:4x4 x two")
