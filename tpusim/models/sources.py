"""The sources of the dimensions of published models that are not in `zoo.toml`."""

SOURCES = {
    "bert-": "arXiv:1810.04805, section 3",
    "t5-": "arXiv:1910.10683, section 3.1.2 and the table of variants",
    "t5-v1.1-": "google-research/text-to-text-transfer-transformer, released_checkpoints.md",
    "mt5-": "arXiv:2010.11934, and released_checkpoints.md of its repository",
    "switch-base": "arXiv:2101.03961, table 1",
    "transformer-big": "arXiv:1706.03762, table 3",
    "transformer-big-mlperf": "arXiv:1706.03762, table 3; mlcommons/training, translation",
    "gshard-m4-": "arXiv:2006.16668, table 1",
    "parti-": "arXiv:2206.10789, section 2.2 and table 1",
    "vit-": "arXiv:2106.04560, table 2; big_vision, vit.py",
    "vit-22b": "arXiv:2302.05442, table 1 and section 2",
    "mixer-": "arXiv:2105.01601, table 1",
    "clip-": "arXiv:2103.00020, table 20; openai/CLIP, model.py",
    "siglip-": "arXiv:2303.15343; big_vision, SigLIP_demo.ipynb",
    "lit-": "arXiv:2111.07991; big_vision, lit_coco.py",
    "conformer-": "arXiv:2109.13226 and arXiv:2010.10504",
    "resnet-": "arXiv:1512.03385, table 1",
    "bit-": "arXiv:1912.11370, section 3.1",
    "stable-diffusion-v": "arXiv:2112.10752; diffusers, UNet2DConditionModel",
    "stable-diffusion-3": "arXiv:2403.03206, section 5.3",
    "flux-": "AI-Hypercomputer/maxdiffusion, base_flux_dev.yml",
}
"""The source by the beginning of the names that it is of; the longest one counts."""


def source_of(name: str) -> str:
    """Return the source of the dimensions of a published model by its name; empty for none."""
    begins = [start for start in SOURCES if name.startswith(start)]
    return SOURCES[max(begins, key=len)] if begins else ""
