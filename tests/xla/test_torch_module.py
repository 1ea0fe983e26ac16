"""Modules of PyTorch: scopes, lines, FLOPs in closed form, and the compiled step."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from compiler_parts import lowered_flops

import tpusim as ts
from tpusim.base import CompileError

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torchax") is None, reason="needs pip install 'tpusim[torch]'"),
]

LAYERS, WIDTH, HIDDEN, ROWS = 3, 256, 512, 1024
FORWARD = LAYERS * 2 * 2 * ROWS * WIDTH * HIDDEN

if find_spec("torchax"):
    import jax
    import jax.numpy as jnp
    import optax
    import torch
    from jax.sharding import PartitionSpec as P

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
            self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

        def forward(self, x, scale=1.0):
            return x + scale * self.down(torch.nn.functional.gelu(self.up(x)))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
            self.register_buffer("offset", torch.zeros(WIDTH))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x, scale=0.5)
            return {"loss": ((x + self.offset) ** 2).mean(), "size": x.shape[0]}

    class Conditioned(torch.nn.Module):
        """Makes tensors in its call, as metnet's does, and keeps one in a list."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, WIDTH)
            self.tables = [torch.ones(WIDTH)]

        def forward(self, x):
            steps = torch.zeros(len(x), 4, dtype=torch.long).type_as(x)
            steps[:, 1] = 2
            scale = torch.tensor([3.0]).to(x.device)
            return {"loss": (scale * x * self.linear(steps) * self.tables[0].to(x.device)).sum()}


def net(device="meta"):
    with torch.device(device):
        return Net()


def rows():
    return torch.zeros(ROWS, WIDTH, device="meta")


def test_a_step_has_the_module_s_weights_as_shapes() -> None:
    step = ts.xla.torch(net(), (rows(),))
    weights, buffers, batch = step.inputs
    assert len(weights) == 2 * LAYERS
    assert weights["layers.1.up.weight"].shape == (HIDDEN, WIDTH)
    assert list(buffers) == ["offset"]
    assert [each.shape for each in batch] == [(ROWS, WIDTH)]


def lowered(step):
    return jax.jit(step).trace(*step.inputs).lower(lowering_platforms=("tpu",))


def test_flops_are_those_of_the_closed_form() -> None:
    for optimizer, times in ((None, 1), (optax.sgd(0.1), 3)):
        step = ts.xla.torch(net(), (rows(),), optimizer=optimizer)
        counted = lowered_flops(lowered(step)).total
        unneeded = FORWARD / LAYERS / 2 if optimizer else 0  # the gradient of the first input
        assert counted == times * FORWARD - unneeded


def test_a_step_computes_what_the_module_does() -> None:
    module, x = net("cpu"), torch.rand(4, WIDTH)
    step = ts.xla.torch(module, (x,), optimizer=optax.sgd(0.5))
    weights = {name: jnp.asarray(each.detach().numpy()) for name, each in module.named_parameters()}
    buffers = {"offset": jnp.zeros(WIDTH)}
    state = optax.sgd(0.5).init(weights)
    new, _, _, loss = step(weights, buffers, state, [jnp.asarray(x.numpy())])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    wanted = module(x)["loss"]
    wanted.backward()
    optimizer.step()
    assert float(loss) == pytest.approx(wanted.item(), rel=1e-3)
    for name, each in module.named_parameters():
        assert jnp.allclose(new[name], each.detach().numpy(), atol=2e-3), name


def test_tensors_that_a_module_makes_in_its_call_have_values() -> None:
    module, x = Conditioned(), torch.rand(8, WIDTH)
    step = ts.xla.torch(module, (x,))
    weights = {name: jnp.asarray(each.detach().numpy()) for name, each in module.named_parameters()}
    (loss,) = step(weights, {}, [jnp.asarray(x.numpy())])
    assert float(loss) == pytest.approx(module(x)["loss"].item(), rel=1e-3)


def test_tensors_of_the_meta_device_that_are_no_weights_are_traced() -> None:
    with torch.device("meta"):
        module = Conditioned()
    step = ts.xla.torch(module, (rows(),), optimizer=optax.sgd(0.1))
    assert lowered_flops(lowered(step)).total == 2 * 2 * ROWS * 4 * WIDTH


def test_placed_finds_weights_by_name_and_the_optimizer_s_state_too() -> None:
    step = ts.xla.torch(net(), (rows(),), optimizer=optax.adamw(1e-3))
    found = step.placed({"*.up.weight": P("x"), "*": P(None, "x")}, batch=P("x"))
    weights, buffers, state, batch = found["in_shardings"]
    assert weights["layers.0.up.weight"] == state[0].mu["layers.0.up.weight"] == P("x")
    assert weights["layers.0.down.weight"] == P(None, "x")
    assert (state[0].count, batch, buffers) == (P(), P("x"), {"offset": P()})
    assert found["donate"] == (0, 1, 2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ts.xla.torch(Net, (rows(),)), "module is type; give a torch.nn.Module"),
        (
            lambda: ts.xla.torch(net(), (rows(),)).placed({"*.wq": P()}),
            r"no weight is named '\*\.wq'; they are layers\.0",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, said: str) -> None:
    with pytest.raises(CompileError, match=said):
        make()


def test_without_a_loss_a_training_step_is_refused() -> None:
    step = ts.xla.torch(Block().to("meta"), (rows(),), optimizer=optax.sgd(0.1))
    with pytest.raises(CompileError, match="has no loss; give loss="):
        jax.jit(step).trace(*step.inputs)


def test_a_compiled_step_is_named_by_the_module_and_its_lines(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))
    step = ts.xla.torch(net(), (rows(),), optimizer=optax.sgd(0.1))
    compiled = ts.xla.compile(
        step, *step.inputs, slice="v5e:2x2", mesh={"data": 4}, until="schedule",
        **step.placed({"*": P("data")}, batch=P("data")),
    )  # fmt: skip
    assert re.search(r"layers\.1\)?/up/", compiled.hlo)
    assert compiled.memory.aliased > 0
    result = ts.simulate(compiled)
    assert not result.unknown
    table = ts.explain_lines(result)
    line = next(
        n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "gelu" in text
    )
    row = next(row for row in table.rows if row.place.endswith(f"test_torch_module.py:{line}"))
    assert row.seconds > 0.5 * result.step_time_s
