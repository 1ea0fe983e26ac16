"""Vision transformers, mixers, two towers and Conformers: published counts, FLOPs and faults."""

import pytest
from extent import thorough

import tpusim as ts
from tpusim.base import ModelError, PlanError
from tpusim.models import (
    Architecture,
    Conformer,
    MlpMixer,
    TextTower,
    TwoTowers,
    VisionTransformer,
)
from tpusim.program import Collective, walk_ops

POD = ts.Slice("v5e", "4x4")
TINY = {"layers": 2, "embed": 64, "mlp": 256, "heads": 4, "patch": 8, "image": 32, "classes": 16}
TINY_TEXT = {"layers": 3, "embed": 96, "mlp": 192, "heads": 4, "vocab": 256, "length": 8}
SPEECH = {"layers": 2, "embed": 64, "heads": 4, "kernel": 4, "frames": 64, "mel": 16, "codes": 32}


def tiny(**changes: object) -> VisionTransformer:
    return VisionTransformer(**{**TINY, **changes})


def towers(**changes: object) -> TwoTowers:
    text = TextTower(**TINY_TEXT)
    return TwoTowers(**{"image": tiny(), "text": text, "shared": 32, **changes})


def speech(**changes: object) -> Conformer:
    return Conformer(**{**SPEECH, **changes})


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("s/16", 22_050_664),
        ("b/16", 86_567_656),
        ("b/32", 88_224_232),
        ("l/16", 304_326_632),
        ("h/14", 632_045_800),
    ],
)
def test_vision_transformers_have_their_published_parameters(name: str, count: int) -> None:
    """With 1000 classes: `num_params` of torchvision's vit_b_16, vit_b_32, vit_l_16 and vit_h_14.

    S/16 has the dimensions of DeiT-S, whose count it is.
    """
    assert VisionTransformer.published(f"vit-{name}").parameter_count == count


@pytest.mark.parametrize(("name", "millions"), [("g/14", 1011), ("G/14", 1843), ("22b/14", 21743)])
def test_the_largest_have_their_published_parameters_before_the_head(
    name: str, millions: int
) -> None:
    """Tables 2 of arXiv:2106.04560 and 1 of arXiv:2302.05442 count neither head nor pooling.

    That of `22b` counts the matrices of the layers alone: embeddings and biases are 0.06 % more.
    """
    model = VisionTransformer.published(f"vit-{name}")
    graph = model.graph(batch=1)
    ends = ("map/", "head")
    sizes = graph.sizes
    own = 0
    for weight in graph.parameters:
        if not weight.tensor.name.startswith(ends):
            count = weight.copies
            for dim in weight.tensor.dims:
                count *= sizes[dim]
            own += count
    assert own / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize(("name", "count"), [("b/16", 59_880_472), ("l/16", 208_196_168)])
def test_mixers_have_their_published_parameters(name: str, count: int) -> None:
    assert MlpMixer.published(f"mixer-{name}").parameter_count == count


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("clip-b/16", 149_620_737),
        ("clip-l/14", 427_616_513),
        ("siglip-b/16", 203_155_970),
        ("siglip-so400m/14", 877_360_306),
    ],
)
def test_two_towers_have_their_published_parameters(name: str, count: int) -> None:
    assert TwoTowers.published(name).parameter_count == count


@pytest.mark.parametrize(
    ("name", "billions"), [("conformer-xl", 0.6), ("conformer-xxl", 1.0), ("conformer-g", 8.0)]
)
def test_conformers_have_their_published_parameters(name: str, billions: float) -> None:
    """Rounded in the papers; subsampling and codebook, whose sizes they do not state, are 6 %."""
    assert Conformer.published(name).parameter_count / 1e9 == pytest.approx(billions, rel=0.06)


def test_flops_of_a_vision_transformer() -> None:
    """2 a weight of a matmul and patch, and 4 s s d a layer for the scores; one class token."""
    model = VisionTransformer.published("vit-b/16", pool="mean")
    layer = 4 * 768**2 + 2 * 768 * 3072
    matmuls = 196 * (12 * layer + 768 * 768) + 768 * 1000
    scores = 12 * 2 * 196 * 196 * 768
    assert model.graph(batch=5).model_flops() == 5 * 2 * (matmuls + scores)


def test_flops_of_a_probe() -> None:
    """Keys and values of all patches, the rest of one query."""
    probe, mean = (tiny(pool=pool).graph(batch=3).model_flops() for pool in ("probe", "mean"))
    wide = 2 * 16 * 64 * 64
    narrow = 2 * 64 * 64 + 2 * 64 * 256 + 2 * 16 * 64
    assert probe - mean == 3 * 2 * (wide + narrow)


def test_flops_of_a_conformer() -> None:
    """The modules of a layer by hand, on a quarter of the frames; distances are 2 n - 1."""
    layer = 4 * 64 * 256 + 4 * 64 * 64 + 3 * 64 * 64 + 64 * 4
    scores = 2 * 16 * 16 * 64
    ends = 16 * (4 * 64 * 64 + 64 * 32)
    convolutions = 32 * 8 * 9 * 64 + 16 * 4 * 9 * 64 * 64
    forward = 2 * (16 * layer + scores) + ends + convolutions
    assert speech().graph(batch=2).model_flops() == 2 * 2 * forward
    more = 2 * (31 * 64 * 64 + 2 * 16 * 31 * 64)
    added = speech(relative=True).graph(batch=2).model_flops() - 2 * 2 * forward
    assert added == 2 * 2 * (31 * 64 * 64 + 2 * 16 * 31 * 64) != more


MODELS = {
    "vit": tiny(),
    "vit-probe": tiny(pool="probe", representation=True),
    "vit-22b": tiny(pool="probe", parallel=True, qk_norm=True, rms=True, qkv_bias=False),
    "mixer": MlpMixer(layers=2, embed=64, token_mlp=32, mlp=256, patch=8, image=32, classes=16),
    "clip": towers(),
    "siglip": towers(loss="sigmoid"),
    "lit": towers(frozen="image"),
    "conformer": speech(),
    "conformer-relative": speech(relative=True),
}
MESHES = ({"data": 16}, {"fsdp": 16}, {"fsdp": 4, "tensor": 4}, {"data": 2, "fsdp": 2, "tensor": 4})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("remat", ["full", thorough("minimal"), thorough("none")])
def test_meshes_run_and_flops_are_conserved(name: str, remat: str) -> None:
    """What is executed is the model's, what is done again, and what several devices do alike."""
    model = MODELS[name]
    found = set()
    for mesh in MESHES:
        plan = ts.Plan(mesh=mesh, global_batch=64, remat=remat)
        result = ts.simulate(model, plan, POD)
        found.add((result.flops.model, result.flops.recompute))
    ((whole, _),) = found
    assert whole <= 3 * model.graph(batch=64).model_flops()


def test_a_pipeline_cuts_the_layers_of_encoders() -> None:
    plan = ts.Plan(mesh={"data": 8, "stage": 2}, global_batch=64, microbatches=2)
    for model in (tiny(), speech()):
        assert ts.simulate(model, plan, POD).step_time_s > 0
    each = [tiny().layers, TextTower(**TINY_TEXT).layers]
    assert ts.simulate(towers(), plan.replace(stage_layers=each), POD).step_time_s > 0


def test_each_part_of_a_pipeline_trains_something() -> None:
    plan = ts.Plan(mesh={"data": 8, "stage": 2}, global_batch=64, microbatches=2,
                   stage_layers=[tiny().layers, TextTower(**TINY_TEXT).layers])  # fmt: skip
    with pytest.raises(PlanError, match=r"part 0 of .* \(.*\) is frozen and has no backward pass"):
        ts.simulate(towers(frozen="image"), plan, POD)


def test_a_frozen_tower_runs_forward_only_and_has_no_state() -> None:
    plan = ts.Plan(mesh={"data": 16}, global_batch=64, remat="none")
    free, frozen = (ts.simulate(towers(frozen=one), plan, POD) for one in ("", "image"))
    image, _ = (t.graph(batch=64).model_flops() for t in (tiny(), tiny()))
    head = 64 * 2 * 64 * 16
    pixels = 64 * 16 * 2 * 192 * 64
    embedding = 64 * 2 * 64 * 32
    logits = 2 * 64 * 64 * 32
    tower = image - head + embedding
    less = free.flops.model - frozen.flops.model
    assert less == 2 * tower - pixels + logits
    state = {a.tensor for a in frozen.program.resident if a.category == "optimizer state"}
    weights = {a.tensor for a in frozen.program.resident if a.category == "weights"}
    assert {f"{name}/moments" for name in weights if not name.startswith("image/")} == state
    updates = {op.scope for op in frozen.program.body if op.name.startswith("update/")}
    assert updates == {name for name in weights if not name.startswith("image/")}


def test_towers_with_the_rules_of_all_are_as_without_and_others_change_one_tower() -> None:
    """A data-parallel image tower beside a tensor-parallel text tower, in one program."""
    mesh = {"data": 4, "tensor": 4}
    alike = {f"{part}.act_heads": "tensor" for part in ("image", "text")}
    apart = {"image.act_batch": ["data", "tensor"]}
    apart |= {f"image.{kind}{dim}": [] for kind in ("", "act_") for dim in ("heads", "mlp")}

    def run(rules: dict[str, object]) -> ts.PlanResult:
        return ts.simulate(towers(), ts.Plan(mesh=mesh, global_batch=64, rules=rules), POD)

    def reduced(result: ts.PlanResult, part: str) -> set[str]:
        ops = (op for op in _collectives(result) if "tensor" in op.axes)
        return {op.name for op in ops if op.scope == f"{part}/layer/mlp_out"}

    assert run({}).step_time_s == run(alike).step_time_s
    assert reduced(run({}), "image")
    assert reduced(run({}), "text") == reduced(run(apart), "text") != set()
    assert not reduced(run(apart), "image")


def _collectives(result: ts.PlanResult) -> list[Collective]:
    ops = walk_ops(result.program.body, result.program.segments)
    return [op for op, _ in ops if isinstance(op, Collective)]


def test_all_embeddings_of_one_tower_are_gathered_and_their_gradients_scattered() -> None:
    result = ts.simulate(towers(), ts.Plan(mesh={"data": 16}, global_batch=64), POD)
    found = {op.name: op for op in _collectives(result) if "embedding_of" in op.name}
    gathered = [op for name, op in found.items() if name.startswith("all-gather")]
    assert [float(op.bytes) for op in gathered] == [64 * 32 * 2]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: VisionTransformer.published("vit-x/16"), "no VisionTransformer 'vit-x/16'"),
        (
            lambda: VisionTransformer.published("vit-b"),
            "no VisionTransformer 'vit-b' is known; of vit there are",
        ),
        (
            lambda: tiny(image=30),
            "image is 30 pixels, which patches of 8 do not divide; write imag",
        ),
        (
            lambda: tiny(heads=5),
            "embed 64 does not divide into 5 heads; write heads that divide it",
        ),
        (lambda: tiny(pool="max"), "pool is 'max'; write one of token, mean, probe"),
        (lambda: MlpMixer.published("mixer-z/16"), "no MlpMixer 'mixer-z/16'"),
        (
            lambda: TwoTowers.published("clip"),
            "no TwoTowers 'clip' is known; of clip there are clip-b",
        ),
        (lambda: towers(frozen="both"), "frozen is 'both'; write one of"),
        (
            lambda: towers(image_projection=False),
            r"image\.embed is 64 and shared is 32, with no projection between them; write image_pr",
        ),
        (lambda: speech(frames=30), "frames is 30, which the subsampling by 4 does not divide"),
        (
            lambda: Conformer.published("conformer-x"),
            "no Conformer 'conformer-x' is known; did you mean",
        ),
    ],
)
def test_faults_are_told(made: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        made()


def test_models_are_values() -> None:
    for model in MODELS.values():
        assert isinstance(model, Architecture)
        assert hash(model) == hash(type(model)(**{k: getattr(model, k) for k in model.flat()}))
