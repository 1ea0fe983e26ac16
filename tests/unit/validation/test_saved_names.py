"""Names of tensors in the columns of a run, in any kind of layer that the models have."""

from itertools import product

import pytest
from plans import small

from tpusim.base.errors import PlanError
from tpusim.base.phase import Phase
from tpusim.graph import Scan, training_step
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.validation import MeasuredRun
from tpusim.validation.run_mesh import slice_of
from tpusim.validation.run_setup import plan_of

COLUMNS = ("layer_in", "q", "k", "v", "context", "out", "mlp_in", "mlpwi", "mlpwo")
PERIODS = {1: {}, 3: {"window": 4, "global_every": 3}}
MODELS = {
    f"{attention}-{'gated' if gated else 'plain'}-{'parallel' if parallel else 'serial'}-{period}":
    small(layers=6, attention=attention, gated=gated, parallel=parallel, kv_heads=2, **windows)
    for attention, gated, parallel, (period, windows) in product(
        ("flash", "dot"), (True, False), (True, False), PERIODS.items()
    )
}  # fmt: skip


def planned(model: Transformer, **columns: str) -> Plan:
    run = MeasuredRun(
        id="a", chip="v5e", topology="4x4", n_layers=6, d_model=64, n_heads=8, d_ff=256, vocab=512,
        seq_len=16, global_batch=32, mesh="fsdp=16", step_s=1.0, **columns,
    )  # fmt: skip
    return plan_of(run, model, slice_of(run)[0])[0]


def saved(model: Transformer, plan: Plan) -> list[str]:
    """Short names of all stacks of one trip, those of several layers as often as they are."""
    step = training_step(model.graph(batch=4, seq_len=16), plan.remat)
    scans = (op for op in step.ops if isinstance(op, Scan) and op.phase is Phase.FORWARD)
    return sorted(tensor.short for scan in scans for tensor in scan.saves)


def meant(name: str, model: Transformer) -> set[str]:
    """What a column's name saves: all but what no backward pass reads, a last projection."""
    if name in ("mlp_in", "mlpwi"):
        return {"mlp_in_0", "mlp_in_1"} if model.gated else {"mlp_in"}
    unread = {"mlpwo"} | ({"out"} if model.parallel else set())
    return set() if name in unread else {name}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", COLUMNS)
def test_each_name_of_the_columns_is_a_tensor_of_every_layer(name: str, model: Transformer) -> None:
    """In HBM or on the host, in each layer of a trip; the layers' inputs are there anyway."""
    there, away = planned(model, save=name), planned(model, offload=name)
    assert (there.offload, away.save) == ((), ())
    assert there.save == away.offload
    expected = sorted(model.period * [*({"layer_in"} | meant(name, model))])
    assert saved(model, there) == saved(model, away) == expected


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_all_names_together_save_all_products_with_a_weight(model: Transformer) -> None:
    """As minimal does, and with what attention is made of."""
    everything = planned(model, save=",".join(COLUMNS))
    minimal = planned(model, remat="minimal")
    added = sorted([*saved(model, minimal), *model.period * ["context"]])
    assert saved(model, everything) == added


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("left_out", ["mlp_in", "mlpwi", "q,k", "mlp_in;v"])
def test_minimal_without_some_saves_the_rest(left_out: str, model: Transformer) -> None:
    plan = planned(model, remat=f"minimal_except:{left_out}")
    names = {n for column in left_out.replace(";", ",").split(",") for n in meant(column, model)}
    minimal = saved(model, planned(model, remat="minimal"))
    assert saved(model, plan) == [name for name in minimal if name not in names]


@pytest.mark.parametrize("model", [MODELS["flash-gated-serial-1"], MODELS["dot-plain-parallel-3"]])
@pytest.mark.parametrize("column", ["save", "offload"])
def test_a_name_that_is_none_is_told_with_its_column(column: str, model: Transformer) -> None:
    plan = planned(model, **{column: "q,contxt"})
    with pytest.raises(PlanError, match=rf"^plan.{column} lists 'contxt', .*mean 'context'\?$"):
        saved(model, plan)


def test_a_name_that_minimal_cannot_leave_out_is_told() -> None:
    model = MODELS["flash-gated-serial-1"]
    with pytest.raises(PlanError, match=r"minimal_except:q,mlpin, but 'mlpin' .*mean 'mlp_in'"):
        planned(model, remat="minimal_except:q,mlpin")
