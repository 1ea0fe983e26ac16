"""Exported programs: they compile as the function that they were exported from."""

from importlib.util import find_spec
from math import prod
from pathlib import Path

import pytest

if not find_spec("jax"):
    pytest.skip("needs pip install 'tpusim[xla]'", allow_module_level=True)

import jax
import jax.numpy as jnp
from compiler_parts import lowered_flops
from jax import export, lax
from jax.sharding import PartitionSpec as P

import tpusim as ts
from tpusim.base import CompileError, FileError
from tpusim.cli.program_commands import compile_ as compile_file
from tpusim.compiler.exported import mesh_of, read_program, wrap_stablehlo

MESH = {"fsdp": 2, "tensor": 2}
LAYERS, WIDTH, ROWS = 3, 256, 512
W = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.bfloat16)
X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16)
ONE = 2 * ROWS * WIDTH * WIDTH


def layer(x, w):
    return jnp.tanh(x @ w), None


def loss(w, x, body=layer):
    return lax.scan(body, x, w)[0].astype(jnp.float32).sum()


def step(w, x):
    return w - jax.grad(loss)(w, x)


def jitted():
    return jax.jit(step, in_shardings=(P(None, "fsdp", "tensor"), P("fsdp")), donate_argnums=0)


def text_of(fn, *args) -> bytes:
    return lowered(fn, *args).as_text(debug_info=True).encode()


def lowered(fn, *args):
    return jax.jit(fn).trace(*args).lower(lowering_platforms=("tpu",))


def flops_of_text(fn, *args, **counted):
    return lowered_flops(lowered(wrap_stablehlo(text_of(fn, *args)).call, *args), **counted)


def convolve(stride, groups, padding="SAME"):
    def run(image, kernel):
        return lax.conv_general_dilated(
            image, kernel, (stride, stride), padding, feature_group_count=groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    return run


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


CASES = {
    "matmul": (lambda a, b: a @ b, array(8, 16), array(16, 4)),
    "batched": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), array(3, 8, 16), array(3, 16, 4)),
    "complex": (lambda a, b: a @ b, *[array(8, 8, dtype=jnp.complex64)] * 2),
    "loop": (lambda w, x: lax.scan(layer, x, w)[0], W, X),
    "gradient of a loop": (jax.grad(loss), W, X),
    "branches": (
        lambda at, a: lax.switch(at, (lambda a: a @ a, lambda a: a @ a @ a, lambda a: a), a),
        array(dtype=jnp.int32), array(8, 8),
    ),
    "loop downwards": (
        lambda a: lax.fori_loop(0, 7, lambda _, x: x @ x, a), array(8, 8),
    ),
    "convolution": (convolve(2, 1), array(2, 15, 15, 6), array(3, 3, 6, 8)),
    "groups": (convolve(1, 2), array(2, 8, 8, 6), array(3, 3, 3, 8)),
    "gradient of a convolution": (
        jax.grad(lambda i, k: convolve(2, 1, "VALID")(i, k).sum(), (0, 1)),
        array(2, 15, 15, 6), array(3, 3, 6, 8),
    ),
    "ragged": (lax.ragged_dot, array(32, 8), array(4, 8, 16), array(4, dtype=jnp.int32)),
    "function": (lambda a: jax.jit(jnp.dot)(a, jax.jit(jnp.dot)(a, a)), array(8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_flops_of_text_are_those_of_the_function(case: str) -> None:
    fn, *args = CASES[case]
    wanted = lowered_flops(lowered(fn, *args))
    assert flops_of_text(fn, *args) == wanted
    assert wanted.total > 0
    assert lowered_flops(lowered(read_program(text_of(fn, *args)).call, *args)) == wanted
    assert (wanted.on_padding > 0) == (case in ("convolution", "groups")), "others have no padding"


def test_what_is_recomputed_counts_only_if_asked() -> None:
    step = jax.grad(lambda w, x: loss(w, x, jax.checkpoint(layer)))
    assert flops_of_text(step, W, X).total == 3 * LAYERS * ONE
    assert flops_of_text(step, W, X, recomputed=True).total == 4 * LAYERS * ONE


@pytest.mark.parametrize(
    ("estimate", "wanted"), [('{"flops": 7, "bytes_accessed": 9}', 7.0), ("{}", None)]
)
def test_a_kernel_without_an_estimate_makes_the_flops_unknown(estimate: str, wanted) -> None:
    config = f'{{"custom_call_config": {{"cost_estimate": {estimate}}}}}'.replace('"', "\\22")
    text = f"""
    module @step {{
      func.func public @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {{
        %0 = stablehlo.custom_call @tpu_custom_call(%arg0) {{backend_config = "{config}"}}
            : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }}
    }}"""
    found = lowered_flops(lowered(read_program(text).call, array(8)))
    assert (found and found.total) == wanted


def test_text_keeps_arguments_shardings_and_donation() -> None:
    text = b"""
    module @step attributes {mhlo.num_partitions = 4 : i32} {
      sdy.mesh @mesh = <["fsdp"=2, "tensor"=2]>
      func.func public @main(
          %arg0: tensor<8x4xbf16> {jax.buffer_donor = true,
              sdy.sharding = #sdy.sharding<@mesh, [{"fsdp", "tensor"}, {}]>},
          %arg1: tensor<4xi1>) -> tensor<8x4xbf16> { return %arg0 : tensor<8x4xbf16> }
    }"""
    found = read_program(text)
    assert (found.fun_name, found.nr_devices, mesh_of(found)) == ("step", 4, MESH)
    assert [(each.shape, each.dtype) for each in found.in_avals] == [
        ((8, 4), jnp.bfloat16), ((4,), jnp.bool_),
    ]  # fmt: skip
    assert [each and each.spec for each in found._in_named_shardings] == [
        P(("fsdp", "tensor"), None), None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"HloModule jit_step", "this is HLO, which the compiler has made already"),
        (b"\x1f\x8b\x08", "no StableHLO; replay it"),
        (b"module { func.func @main() { oops } }", "no StableHLO that this version of JAX reads"),
        (b"\x7fELF\0\0\0", "no StableHLO, as text or bytecode"),
        (b"module { func.func @other() { return } }", "no function main"),
        (
            b"module { func.func @main(%a: tensor<?xf32>) { return } }",
            "tensor<\\?xf32>, no array of static shape",
        ),
        (
            b'module { sdy.mesh @m = <["x"=4]> func.func @main(%a: tensor<8xf32> '
            b'{sdy.sharding = #sdy.sharding<@m, [{"x":(1)2}]>}) { return } }',
            "split that axis of the mesh",
        ),
    ],
)
def test_what_is_no_program_is_refused(given: bytes, said: str) -> None:
    with pytest.raises(CompileError, match=said):
        read_program(given)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(FileError, match=r"none\.mlir: cannot be read"):
        read_program(Path("none.mlir"))


@pytest.mark.xla
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'")
class TestCompiled:
    """With the TPU compiler."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))

    def exported(self, **options):
        with jax.set_mesh(ts.xla.make_mesh("v5e:2x2", MESH)):
            return export.export(jitted(), platforms=["tpu"], **options)(W, X)

    def test_every_form_makes_the_program_of_the_function(self, tmp_path: Path) -> None:
        grid = ts.xla.make_mesh("v5e:2x2", MESH)
        wanted = ts.xla.compile(jitted(), W, X, slice="v5e:2x2", mesh=grid)
        seconds = ts.simulate(wanted).step_time_s
        made = self.exported()
        file = tmp_path / "step.mlir"
        file.write_text(made.mlir_module())
        for given in (made, made.mlir_module(), made.mlir_module_serialized, file):
            found = ts.xla.compile(given, slice="v5e:2x2")
            assert found.name == "step"
            assert found.mesh == tuple(MESH.items())
            assert found.memory == wanted.memory
            assert found.memory.aliased == prod(W.shape) * 2 // 4
            assert found.model_flops == wanted.model_flops == 3 * LAYERS * ONE
            result = ts.simulate(found)
            assert result.step_time_s == pytest.approx(seconds, rel=1e-9)
            assert not result.unknown

    def test_the_command_line_does_the_same(self, tmp_path: Path) -> None:
        file, made = tmp_path / "step.mlir", tmp_path / "step.hlo.gz"
        file.write_text(self.exported().mlir_module())
        shown = compile_file(
            str(file), pod="v5e:2x2", mesh=None, out=str(made), full=False, time_limit=300.0
        )
        assert "step on v5e:2x2 (4 chips)" in shown
        kept = ts.xla.load(made)
        assert (kept.until, kept.mesh) == ("schedule", tuple(MESH.items()))
        assert f"{ts.simulate(kept).mfu:.1%}" in shown

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"slice": "v5e:4x4"}, "for 4 devices, and the slice has 16"),
            ({"mesh": {"x": 4}}, "over the mesh fsdp=2, tensor=2, and the mesh is x=4"),
            ({"static": 0}, "leave out further arguments"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, options, said: str) -> None:
        with pytest.raises(CompileError, match=said):
            ts.xla.compile(self.exported(), **{"slice": "v5e:2x2", **options})

    def test_shardings_of_gspmd_are_kept(self) -> None:
        tiled = '{mhlo.sharding = "{devices=[2,2]<=[4]}"}'
        text = f"""
        module @twice attributes {{mhlo.num_partitions = 4 : i32}} {{
          func.func public @main(%a: tensor<512x512xf32> {tiled}, %b: tensor<KIND>)
              -> tensor<512x512xf32> {{
            %0 = stablehlo.add %a, %a : tensor<512x512xf32>
            return %0 : tensor<512x512xf32>
          }}
        }}"""
        options = {"slice": "v5e:2x2", "mesh": MESH, "until": "schedule"}
        found = ts.xla.compile(text.replace("KIND", "i32"), name="mine", **options)
        assert found.name == "mine"
        assert found.memory.arguments == pytest.approx(512 * 512 * 4 // 4, abs=4096)
        with pytest.raises(CompileError, match="argument of int64, which JAX has only after"):
            ts.xla.compile(text.replace("KIND", "i64"), **options)

    def test_another_platform_is_refused(self) -> None:
        made = export.export(jax.jit(step), platforms=["cpu"])(W, X)
        with pytest.raises(CompileError, match="exported for cpu"):
            ts.xla.compile(made, slice="v5e:2x2", mesh=MESH)
