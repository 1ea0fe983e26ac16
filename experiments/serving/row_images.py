"""The images of a row: the texts are encoded, the latents denoised in steps, and decoded."""

import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from row_setup import RowSetup, pairs_of_prompt
from serving_row import ServingRow

from tpusim.base.errors import PlanError
from tpusim.models import load
from tpusim.pipeline.serving_step import StepShape
from tpusim.plan import ServingPlan
from tpusim.server import StepLoad
from tpusim.serving.engines.served_models import served_name
from tpusim.simulation.serving_run import serve_step

DEFAULTS = Path(__file__).with_name("images.toml")

PIXELS = 8
"""Side of the pixels of a latent."""

NO_KERNEL = 2**31
"""Tokens that no sequence has, from which on attention would be a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLoop:
    """How images are made; see `images.toml`."""

    steps: int
    guidance: float
    text: int
    attention: str
    attention_block: tuple[int, ...]
    decoder: str
    encoder: str
    encoded_text: int
    whole_ends: bool
    decoded: int

    @classmethod
    def of(cls, row: ServingRow, assumed: list[str]) -> Self:
        """Return the loop of a row: its columns, and the defaults of its model.

        assumed: what the row does not state is added to it, in words.

        Raise PlanError for a model without defaults.
        """
        name = served_name(row.text("hf_id", row.text("model")))
        table = tomllib.loads(DEFAULTS.read_text("utf-8"))
        if name not in table:
            raise PlanError(
                f"phase is 'diffusion', and no images of {name} are described; add {name} to "
                f"{DEFAULTS.name}"
            )
        found = {key: each["value"] for key, each in table[name].items()}
        columns = {"steps": row.whole, "guidance": row.number, "text": row.whole}
        for key, read in columns.items():
            if row.text(key):
                found[key] = read(key)
            else:
                assumed.append(f"{key} {found[key]:g}")
        found["attention_block"] = tuple(found["attention_block"])
        return cls(**found)

    @property
    def passes(self) -> int:
        """Examples of a step for each image (arXiv:2207.12598, equation 6)."""
        return 2 if self.guidance > 1 else 1


def image_metrics(setup: RowSetup) -> dict[str, float]:
    """Return the images per second and the seconds of a batch, by column.

    Raise PlanError for a batch that the devices do not divide.
    """
    row, plan = setup.row, setup.plan
    loop = ImageLoop.of(row, setup.assumed)
    batch = row.whole("batch")
    if not batch:
        batch = setup.engine.max_num_seqs
        setup.assumed.append(f"full batches of {batch}")
    if batch % plan.ranks:
        raise PlanError(f"batch is {batch}, which {plan.ranks} devices do not divide")
    total = _encode_s(setup, loop, batch)
    total += loop.steps * _step_s(setup, loop, batch)
    total += _decode_s(setup, loop, batch)
    return {"img_s": batch / total, "time_s": total}


def _encode_s(setup: RowSetup, loop: ImageLoop, batch: int) -> float:
    """Return the seconds of a pass of the language model over all texts."""
    if not loop.encoder:
        return 0.0
    each, plan = _of_each(setup, loop, batch), setup.plan
    texts = each * plan.ranks
    tokens = texts * loop.encoded_text
    load_of = StepLoad(0, 0, tokens, tokens, texts * pairs_of_prompt(loop.encoded_text))
    shape = StepShape(tokens=each * loop.encoded_text, rows=each)
    return float(serve_step(load(loop.encoder), plan, setup.pod, load_of, shape).step_time_s)


def _step_s(setup: RowSetup, loop: ImageLoop, batch: int) -> float:
    """Return the seconds of a step of the denoising loop."""
    model = setup.model
    changes = {"text": loop.text, "latent": _latent(setup.row, model)}
    if loop.attention == "dot":
        changes["flash_from"] = NO_KERNEL
    plan = replace(setup.plan, attention_block=loop.attention_block)
    return _examples_s(setup, replace(model, **changes), plan, batch // plan.ranks * loop.passes)


def _decode_s(setup: RowSetup, loop: ImageLoop, batch: int) -> float:
    """Return the seconds in which the latents become images."""
    each = _of_each(setup, loop, batch)
    model = load(loop.decoder, latent=_latent(setup.row, setup.model))
    at_once = min(loop.decoded or each, each)
    return math.ceil(each / at_once) * _examples_s(setup, model, setup.plan, at_once)


def _of_each(setup: RowSetup, loop: ImageLoop, batch: int) -> int:
    """Return the texts that a rank encodes, and the images that it decodes."""
    return batch if loop.whole_ends else batch // setup.plan.ranks


def _examples_s(setup: RowSetup, model: Any, plan: ServingPlan, each: int) -> float:
    """Return the seconds of a pass over so many examples of each rank."""
    count = each * plan.ranks
    load_of = StepLoad(0, 0, count, count, count)
    shape = StepShape(tokens=each, rows=each)
    return float(serve_step(model, plan, setup.pod, load_of, shape).step_time_s)


def _latent(row: ServingRow, model: Any) -> int:
    """Return the side of the latents of a row's images; the model's own where it states none."""
    return row.whole("resolution") // PIXELS or int(model.latent)
