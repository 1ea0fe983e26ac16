"""A training step of a Hugging Face model of PyTorch, unmodified, for slices that are not there.

pip install '../..[torch]' transformers
python run.py v5e:4x4 v6e:4x4
"""

import sys
from collections import Counter

import optax
import torch
import transformers
from jax.sharding import PartitionSpec as P

import tpusim as ts
from tpusim.base.units import format_seconds
from tpusim.results.lines import core_records, operation_of
from tpusim.results.resources import operations_by_name

SHARDINGS = {"*norm.weight": P(), "*": P("fsdp")}
"""Of the weights, by name: norms replicated, all others sharded by their rows."""
BATCH, LENGTH = 16, 2048


def make_model() -> torch.nn.Module:
    """Return a Llama of 1.2 billion parameters (the shape of Llama 3.2 1B) without weights."""
    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, vocab_size=128256, tie_word_embeddings=True,
        use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def layer_seconds(result, names: set[str]) -> Counter:
    """Return the core's seconds by the innermost module of each operation."""
    known, found = operations_by_name(result.program), Counter()
    for record in core_records(result.timeline):
        op = known.get(operation_of(record))
        parts = getattr(op, "scope", "").split("/")
        prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        name = next((each for each in prefixes if each in names), "(no module)")
        found[name] += record.total_ps * 1e-12
    return found


def main() -> None:
    """Compile a training step for each slice, and print what its replay says."""
    model = make_model()
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="meta")
    step = ts.xla.torch(
        model, kwargs={"input_ids": ids, "labels": ids}, optimizer=optax.adamw(1e-4)
    )
    names = {name for name, _ in model.named_modules()}
    for pod in sys.argv[1:] or ("v5e:4x4", "v6e:4x4"):
        compiled = ts.xla.compile(
            step, *step.inputs, slice=pod, mesh={"fsdp": 16}, until="schedule",
            **step.placed(SHARDINGS, batch=P("fsdp")),
        )  # fmt: skip
        result = ts.simulate(compiled)
        print(compiled, result, sep="\n\n")
        unknown = sum(each.picoseconds for each in result.unknown) / result.timeline.total_ps
        print(f"\nunknown     {unknown:.3%}\nlayers")
        for name, seconds in layer_seconds(result, names).most_common(8):
            print(f"  {name:40} {format_seconds(seconds)}")


if __name__ == "__main__":
    main()
