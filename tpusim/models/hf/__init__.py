"""Models by the `config.json` that Hugging Face's transformers writes."""

from tpusim.models.hf.dimensions import from_hf, hf_architecture, hf_dimensions
from tpusim.models.hf.hf_notes import hf_notes

__all__ = ["from_hf", "hf_architecture", "hf_dimensions", "hf_notes"]
