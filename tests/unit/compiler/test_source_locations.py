"""Whose code an instruction comes from: the user's line, and the package's line that says most."""

from collections.abc import Mapping

from compiler_parts import Instruction, SourceFrame

from tpusim.compiler.to_program.source_locations import (
    SourceLocation,
    SourceLocations,
    callback_files,
    name_and_line,
)

PACKAGES = "/venv/lib/python3.11/site-packages/"
MINE = SourceFrame("/home/me/model.py", 42, "mlp")
OUTER = SourceFrame("/home/me/train.py", 7, "step")
LINEAR = SourceFrame(PACKAGES + "flax/linen/linear.py", 80, "Dense.__call__")


def net(file: str, line: int = 1, function: str = "") -> SourceFrame:
    return SourceFrame(f"{PACKAGES}net/{file}.py", line, function)


def at(number: int) -> Instruction:
    metadata = f'metadata={{op_name="jit(f)/mul" stack_frame_id={number}}}'
    return Instruction("mul", "multiply", "f32[]", attributes=metadata)


def origin(*frames: SourceFrame, **more: tuple[SourceFrame, ...]) -> SourceLocation:
    """Of an instruction with that stack, in a module that has others too."""
    stacks: Mapping[int, tuple[SourceFrame, ...]] = dict(
        enumerate((frames, *more.values()), start=3)
    )
    return SourceLocations(stacks).origin(at(3))


def test_a_source_is_the_innermost_line_of_the_users_own_code() -> None:
    assert origin(LINEAR, MINE, OUTER).source == "model.py:42"
    ours = SourceFrame("/home/me/tpusim/tpusim/compiler/compiling.py", 75, "compile")
    assert origin(LINEAR, ours, MINE, OUTER).source == "model.py:42"
    assert origin(LINEAR)[:2] == ("linear.py:80", "")
    assert origin()[:2] == ("", "")
    nameless = Instruction("mul", "multiply", "f32[]")
    assert SourceLocations({3: (MINE,)}).origin(nameless) == ("", "", ())


def test_what_calls_an_exported_program_is_none_of_it() -> None:
    """Neither the command line nor the script that has it compiled, installed or in a checkout."""
    cli = SourceFrame(PACKAGES + "typer/main.py", 1445, "main")
    for folder in (PACKAGES, "/home/me/tpusim/"):
        call = SourceFrame(folder + "tpusim/compiler/exported_call.py", 39, "__call__")
        compiling = SourceFrame(folder + "tpusim/compiler/compiling.py", 75, "compile")
        outside = (call, compiling, SourceFrame(folder + "tpusim/cli/main.py", 1, "run"), cli, MINE)
        assert origin(*outside) == ("", "", ())
        assert origin(OUTER, *outside) == ("train.py:7", "", ())
        assert origin(SourceFrame("-", 3, ""), *outside).source == "StableHLO:3"
        assert name_and_line({3: outside}, at(3)) == "mul"
    jax = SourceFrame(PACKAGES + "jax/_src/pjit.py", 1, "jit")
    assert origin(jax, compiling, cli).source == "pjit.py:1"
    assert origin(compiling, cli).source == ""


def test_its_callers_are_the_other_lines_of_the_users_own_code() -> None:
    assert origin(LINEAR, MINE, net("train"), OUTER).callers == ("train.py:7",)
    assert origin(OUTER).callers == ()
    assert origin(LINEAR).callers == ()


def test_older_compilers_write_the_line_beside_the_name() -> None:
    metadata = 'metadata={op_name="x" source_file="/a/b.py" source_line=12}'
    old = Instruction("mul", "multiply", "f32[]", attributes=metadata)
    assert SourceLocations({}).origin(old)[:2] == ("b.py:12", "")


def test_beneath_it_is_the_innermost_line_of_the_package_that_it_calls() -> None:
    assert origin(LINEAR, MINE).library == "flax/linen/linear.py:80 in Dense.__call__"
    assert origin(net("norm", 5), net("block", 9), MINE).library == "net/norm.py:5"
    assert origin(LINEAR, net("llama", 317, "MLP.__call__"), MINE).library == (
        "net/llama.py:317 in MLP.__call__"
    )
    assert origin(MINE, net("train", 3), OUTER).library == ""
    windows = SourceFrame(r"C:\venv\Lib\site-packages\net\norm.py", 5, "")
    assert origin(windows, MINE).library == r"net\norm.py:5"


def test_jax_and_what_compiles_are_no_packages() -> None:
    kernel = SourceFrame(PACKAGES + "jax/experimental/pallas/splash.py", 9, "kernel")
    ours = SourceFrame(PACKAGES + "tpusim/compiler/compiling.py", 75, "compile")
    assert origin(kernel, MINE, ours, OUTER)[:2] == ("model.py:42", "")
    assert origin(kernel, net("attention", 8), MINE).library == "net/attention.py:8"


def test_bridges_and_lifting_are_no_packages() -> None:
    """Modules of PyTorch through torchax, and what flax runs by `nn.vmap`, `nn.scan` and so on."""
    bridge = SourceFrame(PACKAGES + "torchax/ops/jtorch.py", 44, "_matmul")
    call = SourceFrame(PACKAGES + "torch/nn/modules/linear.py", 125, "forward")
    llama = SourceFrame(PACKAGES + "transformers/models/llama/modeling_llama.py", 175, "forward")
    assert origin(bridge, call, llama, bridge).source == "modeling_llama.py:175"
    assert origin(bridge, call, llama, bridge, MINE).library == (
        "transformers/models/llama/modeling_llama.py:175 in forward"
    )
    lift = SourceFrame(PACKAGES + "flax/core/lift.py", 300, "wrapper")
    module = SourceFrame(PACKAGES + "aqt/jax/v2/flax/aqt_flax.py", 12, "dot")
    assert origin(module, lift, MINE).library == "aqt/jax/v2/flax/aqt_flax.py:12 in dot"
    assert origin(lift, MINE).library == ""


VMAP = net("vmap", 235, "run")
NORM = (net("norm", 139, "square"), VMAP, net("norm", 141, "Norm.__call__"), MINE)
"""A stack that shows whose the map over names is: it is called by a file that it calls back."""


def test_a_file_that_calls_back_its_caller_hands_on() -> None:
    assert callback_files({1: NORM}) == {VMAP.file}
    containers = (net("sequential"), net("block"), net("sequential"), net("block"), MINE)
    assert callback_files({1: containers}) == {net("sequential").file, net("block").file}
    assert (
        callback_files({1: (net("norm"), net("norm"), VMAP, MINE), 2: (MINE, VMAP, MINE)}) == set()
    )


def test_what_a_file_hands_on_is_the_line_that_gave_it() -> None:
    product = (VMAP, net("vmap", 299), net("linear", 270), net("sequential", 77), MINE)
    assert origin(*product).library == "net/vmap.py:235 in run"
    assert origin(*product, norm=NORM).library == "net/linear.py:270"
    assert origin(*NORM).library == "net/norm.py:139 in square"
    assert origin(VMAP, MINE, norm=NORM).library == "net/vmap.py:235 in run"


def test_among_containers_it_is_the_innermost() -> None:
    inner, outer = net("sequential", 77), net("block", 60)
    assert origin(inner, outer, inner, outer, MINE).library == "net/sequential.py:77"


def test_a_stack_without_the_users_code_goes_on_with_that_of_the_loop_around_it() -> None:
    """The body of a function that is traced once, as the sum of a scatter is."""
    places = SourceLocations({1: (VMAP,), 2: (net("lookup", 156), MINE, OUTER), 3: NORM})
    assert places.origin(at(1))[:2] == ("vmap.py:235", "")
    assert places.origin(at(1), around=at(2))[:2] == ("model.py:42", "net/lookup.py:156")
    assert places.origin(at(3), around=at(2)).library == "net/norm.py:139 in square"
    assert places.origin(at(9), around=at(2))[:2] == ("", "")
