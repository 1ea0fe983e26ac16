"""The architecture of a measured system: from its dimensions, or by the name that was published.

A row is recognised by its words and columns, never by its id, so that another row of a system runs
as well. What a source leaves open is taken from the published architecture, with a note.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tpusim import models
from tpusim.base.errors import ModelError
from tpusim.models import (
    SSD,
    Architecture,
    Bert,
    Conformer,
    DiffusionUNet,
    EncoderDecoder,
    EvolvedTransformer,
    Gnmt,
    JointTransformer,
    MaskRCNN,
    MetNet2,
    MlpMixer,
    MoE,
    ResNet,
    SelfAttention,
    Transformer,
    TwoTowers,
    UNet3d,
    VisionTransformer,
)
from tpusim.validation.systems.system_rows import SystemRow, count

T5_TARGET = 114
"""Tokens of a target of span corruption for a source of 512 (T5, arXiv:1910.10683, 3.1.4)."""

UNIT_CAPACITY = "the capacity factor is not given, and taken as 1"

PACKED_TOKENS = 256
"""Tokens of an item of MLPerf's translation data: its 4.5 million pairs are 566,340 items, so
eight pairs of some thirty tokens are one."""

BERT_TOKENS = 512
"""Tokens of a sequence of MLPerf's BERT, and rows of BERT's table of positions."""

PREDICTIONS = {128: 20, 512: 76}
"""Positions that BERT predicts of sequences of each length: `max_predictions_per_seq` of
google-research/bert, and of MLPerf's submissions (mlcommons/training_results_v0.7, Google,
tpu-v4-16-TF, `run_and_time.sh`)."""

MASKED_SHARE = 0.15
"""The share of tokens that BERT masks (arXiv:1810.04805, section 3.1), at other lengths."""

WRITTEN_OUT = {"scan_layers": False}
"""Keys of programs whose layers are written one after another, by a loop of Python and not of the
program: BERT (google-research/bert, `modeling.py`, `transformer_model`), tensor2tensor's
Transformer (`layers/transformer_layers.py`, `transformer_encoder`), and what Mesh TensorFlow
trained, as T5 and Switch (`mesh_tensorflow/transformer/transformer.py`, `LayerStack.call`). Large
models of Lingvo and those of MaxText are scanned."""

GNMT_TOKENS = 30
"""Tokens of a sentence of WMT16, which bucketing pads little."""


@dataclass(frozen=True, slots=True)
class SystemModel:
    """A model, and what its source says about the training of it.

    seq_len: tokens of an example, where the row gives none; 0 for models that read no text.
    batch: examples per step, where the row gives none.
    keys: keys of the plan beside the mesh, such as the optimizer of the recipe.
    staged: keys of its pipeline, where the mesh has stages.
    notes: what was assumed.
    """

    model: Architecture
    seq_len: int = 0
    batch: int = 0
    keys: Mapping[str, Any] = field(default_factory=dict)
    staged: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Recognise: TypeAlias = Callable[[SystemRow, "re.Match[str]"], SystemModel]


def model_of_row(row: SystemRow) -> SystemModel:
    """Return the model of a row. Raise ModelError if neither words nor dimensions name one."""
    found = _recognised(row)
    batches = re.search(r"\bgb (\d+)", row.input)
    return replace(
        found,
        seq_len=_written_length(row) or found.seq_len,
        batch=int(batches[1]) if batches else found.batch,
    )


def _written_length(row: SystemRow) -> int:
    """Return the tokens of a sequence that a row gives; 0 if it gives none."""
    lengths = re.search(r"\bseq (\d+)", row.input)
    return int(lengths[1]) if lengths else row.sizes.get("seq_len", 0)


def _recognised(row: SystemRow) -> SystemModel:
    for pattern, make in _SYSTEMS:
        if found := re.search(pattern, row.system):
            return make(row, found)
    if known := _in_zoo(row):
        return known
    if row.layers and {"d_model", "d_ff"} <= row.sizes.keys():
        two = len(row.layers) == 2 or "enc+dec" in row.cells.get("n_layers", "")
        return (_encoder_decoder if two else _of_dimensions)(row)
    raise ModelError(
        f"{row.system[:80]!r} is no system that is known here, and the row does not give its "
        "dimensions (n_layers, d_model, d_ff, n_heads, vocab)"
    )


def _in_zoo(row: SystemRow) -> SystemModel | None:
    """Return the zoo's model whose name the row begins with."""
    plain = re.sub(r"[^a-z0-9.]", "", row.system)
    names = sorted(models.names(), key=len, reverse=True)
    for name in names:
        if plain.startswith(re.sub(r"[^a-z0-9.]", "", name)):
            model = models.load(name)
            pretrains = isinstance(model, EncoderDecoder) and "transformer" not in name
            return _span_corruption(model) if pretrains else SystemModel(model, seq_len=2048)
    return None


def _span_corruption(model: EncoderDecoder) -> SystemModel:
    """Return a published encoder-decoder as T5 is trained: 512 tokens and a short target."""
    own = replace(model, target_len=T5_TARGET)
    keys: dict[str, Any] = {"optimizer": "adafactor", **WRITTEN_OUT}
    keys |= {"capacity_factor": 1.25} if model.moe.experts else {}
    return SystemModel(own, 512, keys=keys, notes=(f"targets are taken as {T5_TARGET} tokens",))


def _of_dimensions(row: SystemRow) -> SystemModel:
    """Return the language model whose dimensions the row gives."""
    sizes, words, notes = row.sizes, row.words, []
    gated = bool(re.search(r"gated|swiglu|3 matrices|geglu", words))
    encoder = bool(re.search(r"encoder-only|\bbert\b", words)) and "decoder" not in words
    heads, vocab = sizes.get("n_heads", 0), sizes.get("vocab", 0)
    if not heads:
        heads = max(sizes["d_model"] // 128, 1)
        notes.append(f"heads are taken as {heads} of 128")
    if not vocab:
        vocab = 32000
        notes.append("the vocabulary is taken as 32000")
    model = Transformer(
        name=row.id,
        kind="encoder" if encoder else "decoder",
        layers=sum(row.layers),
        embed=sizes["d_model"],
        mlp=sizes["d_ff"],
        heads=heads,
        head_dim=sizes.get("head_dim", 0),
        kv_heads=1 if "multi-query" in words else 0,
        vocab=vocab,
        gated=gated,
        activation="silu" if re.search(r"silu|swish|swiglu", words) else "gelu",
        parallel="parallel attention" in words,
        tied_embeddings=True,
        rotary=False,
        attention="dot",
    )
    return SystemModel(model, seq_len=sizes.get("seq_len", 1024), notes=tuple(notes))


def _encoder_decoder(row: SystemRow) -> SystemModel:
    """Return the encoder-decoder whose dimensions the row gives, T5's where it gives none."""
    sizes, notes = row.sizes, []
    first, *second = row.layers
    layers, decoder = (first, second[0]) if second else (first // 2, first - first // 2)
    translates = "source" in row.cells.get("vocab", "")
    if not translates:
        notes.append(f"targets are taken as {T5_TARGET} tokens")
    experts = count(row.experts)
    moe = MoE()
    if experts:
        choices = re.search(r"top-(\d+)", row.experts)
        every = 2 if "other" in row.experts else 1
        chosen = int(choices[1]) if choices else 1
        moe = MoE(experts=experts, experts_per_token=chosen, expert_every=every)
    model = EncoderDecoder(
        name=row.id,
        layers=layers,
        decoder_layers=decoder,
        embed=sizes["d_model"],
        mlp=sizes["d_ff"],
        heads=sizes.get("n_heads", max(sizes["d_model"] // 64, 1)),
        head_dim=sizes.get("head_dim", 64),
        vocab=sizes.get("vocab", 32128),
        target_vocab=sizes.get("target_vocab", 0),
        target_len=0 if translates else T5_TARGET,
        gated=False,
        activation="relu",
        tied_embeddings=True,
        attention=SelfAttention(kernel="dot", rotary=False),
        moe=moe,
    )
    keys: dict[str, Any] = {"optimizer": "adafactor"}
    keys |= {} if translates else WRITTEN_OUT
    if experts:
        written = re.search(r"capacity factor (\d+(?:\.\d+)?)", row.notes)
        keys["capacity_factor"] = float(written[1]) if written else 1.0
        notes += [] if written else [UNIT_CAPACITY]
    return SystemModel(model, 1024 if translates else 512, keys=keys, notes=tuple(notes))


def _bert(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    """Return BERT (arXiv:1810.04805, section 3), with the dimensions of the row if it has some.

    An encoder with other layers than BERT's (gated, or with one K/V head) is a transformer of these
    dimensions, which predicts all positions, as Lingvo's encoders of MLPerf's data do.
    """
    if re.search(r"gated|multi-query|\bsilu\b", row.words):
        return _of_dimensions(row)
    sizes, notes = row.sizes, []
    published = Bert.PUBLISHED[f"bert-{found[1] or 'large'}"]
    seq_len = _written_length(row) or BERT_TOKENS
    if not _written_length(row):
        notes.append(f"sequences are taken as {BERT_TOKENS} tokens")
    model = Bert(
        name=row.id,
        layers=sum(row.layers) or published["layers"],
        embed=sizes.get("d_model", published["embed"]),
        mlp=sizes.get("d_ff", 4 * sizes.get("d_model", published["embed"])),
        heads=sizes.get("n_heads", max(sizes.get("d_model", published["embed"]) // 64, 1)),
        vocab=sizes.get("vocab", 30522),
        positions=max(seq_len, BERT_TOKENS),
        predictions=PREDICTIONS.get(seq_len, round(MASKED_SHARE * seq_len)),
    )
    return SystemModel(model, seq_len, keys=WRITTEN_OUT, notes=tuple(notes))


def _gshard(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    """Return GShard's M4, by the dimensions of the row or by its billions of weights."""
    if row.layers:
        return _encoder_decoder(row)
    known = {"600": "36l-2048e", "200": "12l-2048e", "150": "36l-512e", "50": "12l-512e",
             "37": "36l-128e"}  # fmt: skip
    if found[1] not in known:
        raise ModelError(f"GShard has no model of {found[1]}B weights; known are {list(known)}")
    model = EncoderDecoder.published(f"gshard-m4-{known[found[1]]}")
    keys = {"optimizer": "adafactor", "capacity_factor": 1.0}
    return SystemModel(model, 1024, keys=keys, notes=(UNIT_CAPACITY,))


def _recommendation(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    raise ModelError(f"{found[0]} is a recommendation model, which is out of scope (limits.md)")


def _resnet(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    """Return a residual network; of MLPerf with statistics of few devices, and a folded image."""
    bit = "bit" in row.system
    name = "bit-r50x1" if bit else f"resnet-{found[1] or 50}"
    changes: dict[str, Any] = {} if bit else {"norm": "device"}
    if re.search(r"mlperf|mlcommons", row.words):
        changes["space_to_depth"] = True
    return SystemModel(ResNet.published(name, **changes), keys={"optimizer": "momentum"})


def _ssd(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    few = row.batch < 16 * 2 * row.chips
    model = SSD(space_to_depth=True, norm="batch" if few else "device")
    return SystemModel(model, keys={"optimizer": "momentum"})


def _mask_rcnn(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    return SystemModel(MaskRCNN(), keys={"optimizer": "momentum"})


def _unet3d(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    return SystemModel(UNet3d(), keys={"optimizer": "momentum"})


def _diffusion(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    if re.search(r"\bxl\b|sdxl|\bv?3\b", row.system):
        raise ModelError(f"{row.system[:60]!r} is another U-Net than Stable Diffusion 1 and 2")
    name = (
        "stable-diffusion-v1"
        if re.search(r"v1|1\.[1-5]", row.system)
        else ("stable-diffusion-v2-base")
    )
    return SystemModel(DiffusionUNet.published(name))


def _flux(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    """Return Flux as MaxDiffusion trains it: all of the transformer, in bf16, and nothing else.

    `base_flux_dev.yml` has weights in bf16, and optax makes moments of their dtype;
    `trainers/flux_trainer.py` encodes texts and images before the first step.
    """
    size = count(row.input) or 1024
    latent = size // 8
    model = JointTransformer.published(f"flux-{found[1] or 'dev'}", latent=latent)
    keys = {"param_dtype": "bf16", "grad_dtype": "bf16", "moment_dtype": "bf16"}
    return SystemModel(model, keys=keys, notes=("texts and images are encoded before",))


def _stable_diffusion_3(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    name = "stable-diffusion-3.5-large" if found[1] else "stable-diffusion-3-medium"
    return SystemModel(JointTransformer.published(name))


def _gnmt(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    note = f"sentences are taken as {GNMT_TOKENS} tokens"
    return SystemModel(Gnmt(), GNMT_TOKENS, notes=(note,))


def _transformer_big(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    note = f"packed items are taken as {PACKED_TOKENS} tokens"
    model = EncoderDecoder.published("transformer-big-mlperf")
    return SystemModel(model, PACKED_TOKENS, keys=WRITTEN_OUT, notes=(note,))


def _parti(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    """Return Parti, pipelined as its paper says (arXiv:2206.10789, section 3).

    Of 16 stages each has a layer of the encoder and four of the decoder, in rounds.
    """
    keys = {"optimizer": "adafactor", "remat": "full"}
    staged = {"schedule": "circular", "virtual_stages": 5}
    notes = () if row.sizes.get("microbatches") else ("as many microbatches as stages",)
    return SystemModel(
        EncoderDecoder.published(f"parti-{found[1]}"), 128, 8192, keys, staged, notes
    )


def _vit(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    giant = re.search(r"ViT-?G\b", row.cells.get("model", ""))
    size, patch = "G" if giant else found[1], found[2] or ("14" if found[1] == "22b" else "16")
    keys: dict[str, Any] = {"image": count(row.input) or 224}
    keys["classes"] = 21843 if "21k" in row.words else 1000
    if re.search(r"big_vision|bigvision", row.cells.get("source", "").lower()):
        keys |= {"pool": "mean", "positions": False, "representation": True, "scanned": False}
    return SystemModel(VisionTransformer.published(f"vit-{size}/{patch}", **keys))


def _mixer(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    return SystemModel(MlpMixer.published(f"mixer-{found[1]}/{found[2]}"))


def _towers(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    family = {"siglit": "lit"}.get(found[1], found[1])
    size = re.search(r"(?:\b|-)(so400m|b|l)/(\d+)", row.system)
    name = f"{family}-{size[1]}/{size[2]}" if size else f"{family}-b/16"
    notes = () if size else (f"the towers are taken as {name}",)
    return SystemModel(TwoTowers.published(name), notes=notes)


def _conformer(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    size = re.search(r"\b(xxl|xl|g)\b", row.system)
    billions = re.search(r"(\d+(?:\.\d+)?) ?b\b", row.system)
    by_size = "g" if billions and float(billions[1]) > 4 else "xl"
    return SystemModel(Conformer.published(f"conformer-{size[1] if size else by_size}"))


def _metnet(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    return SystemModel(MetNet2())


def _zoo_lingvo(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    """Return Lingvo's dense model of a size; of one that is not in the zoo, by its dimensions."""
    name = f"lingvo-{found[1]}b"
    if row.layers or name not in models.names():
        return _of_dimensions(row)
    keys = {"optimizer": "adafactor", "remat": "full"}
    return SystemModel(models.load(name), 1024, keys=keys)


def _meena(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    keys = {"optimizer": "adafactor"}
    notes = ("128 tokens of context and 128 of response",)
    return SystemModel(EvolvedTransformer(), 128, keys=keys, notes=notes)


def _decoder_of_size(row: SystemRow, found: "re.Match[str]") -> SystemModel:
    """Return a decoder of 32 layers with so many weights: 12 x layers x embed^2."""
    embed = round((float(found[1]) * 1e9 / (12 * 32)) ** 0.5 / 256) * 256
    model = Transformer(
        name=row.id, layers=32, embed=embed, mlp=4 * embed, heads=embed // 128, vocab=50304,
        gated=False, activation="gelu", rotary=False, attention="dot", tied_embeddings=True,
    )  # fmt: skip
    return SystemModel(model, 1024, notes=(f"taken as 32 layers of {embed}",))


_SYSTEMS: tuple[tuple[str, Recognise], ...] = (
    (r"dlrm|recommend\w*", _recommendation),
    (r"\bbert(?:-(base|large))?\b", _bert),
    (r"gshard\D*(\d+)b\b", _gshard),
    (r"(?:stable diffusion|\bsd)[-v ]*3(\.5)?\b", _stable_diffusion_3),
    (r"stable diffusion|\bsd[-v ]", _diffusion),
    (r"\bflux\b(?:[-. ]*1?[-. ]*(dev|schnell))?", _flux),
    (r"mask r-?cnn", _mask_rcnn),
    (r"\bssd\b|ssd-resnet", _ssd),
    (r"(?<!wide )resnet-?(\d+)?", _resnet),
    (r"unet3d|3-?d u-?net", _unet3d),
    (r"gnmt", _gnmt),
    (r"transformer-big", _transformer_big),
    (r"\bparti\b\W*(350m|750m|3b|20b)", _parti),
    (r"mixer-(s|b|l|h)/(\d+)", _mixer),
    (r"\b(siglip|siglit|clip|lit)\b", _towers),
    (r"\bvit-?(ti|s|b|l|h|g|e|22b|so400m)\b/?(\d+)?", _vit),
    (r"conformer|bigssl", _conformer),
    (r"metnet", _metnet),
    (r"dense ?lm\D*?(?:12kwide)?(\d+)b", _zoo_lingvo),
    (r"\bmeena\b", _meena),
    (r"(\d+(?:\.\d+)?)b decoder", _decoder_of_size),
)
"""Words of a published system, and its model; the first that is found counts."""
