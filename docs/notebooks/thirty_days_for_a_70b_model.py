# %% [markdown]
# # 30 days, 512 chips and a 70B model
#
# A team wants to train a model of the size of Llama 3.1 70B on a trillion tokens. It has 30 days,
# and at most 512 chips. Which slice should it rent, with which plan, and what will the run cost?
# The decision takes six steps: the model, a first estimate, a search, advice, a check by the TPU
# compiler, and the whole run. No TPU is needed. Where the text states a number, the cell above it
# asserts it.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import tpusim as ts

TOKENS, DAYS, CHIPS = 1e12, 30, 512
DAY_S = 86400

# %% [markdown]
# ## The model
#
# These are the keys of the model's `config.json` that decide its size. `from_hf` also takes the
# path of the file.

# %%
config = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
model = ts.models.from_hf(config)
print(f"{model.parameter_count / 1e9:.1f}B parameters")
assert model.parameter_count == ts.models.load("llama3.1-70b").parameter_count

# %% [markdown]
# ## A first estimate
#
# Six FLOPs per parameter and token, 512 chips, and an MFU of 40 %, as good runs have it:

# %%
flops = 6 * model.parameter_count * TOKENS
chips = {name: ts.load_chip(name) for name in ("v4", "v5e", "v5p", "v6e", "7x")}
estimate = {
    name: flops / (CHIPS * chip.flops["bf16"] * 0.4) / DAY_S for name, chip in chips.items()
}
for name, days in estimate.items():
    print(f"{name:4} {days:5.0f} days")
assert [name for name, days in estimate.items() if days < DAYS] == ["v6e", "7x"]

# %% [markdown]
# Two generations remain, v6e and 7x. The estimate knows nothing of memory, of communication or of
# attention, which is much of the work at 8192 tokens.
#
# ## A search
#
# A batch of 512 sequences has 4.2 million tokens, which is usual for this size. The space has every
# legal slice of 128 to 512 chips, alone or as two slices joined by the data-centre network (DCN),
# every mesh of `fsdp` and `tensor` on it, two remat policies, and one to four microbatches. The
# search simulates in the order of lower bounds, so the plan that it finds is proved to be the best.

# %%
run = ts.TrainingRun(tokens=TOKENS, checkpoints=ts.Checkpoints(every=500, storage="50 GB/s"))
base = ts.Plan(seq_len=8192, global_batch=512)


def fastest(generation):
    space = ts.PlanSpace(
        base=base,
        slices=ts.slices_of([generation], 128, CHIPS, num_slices=[1, 2]),
        axes=["dcn_data", "fsdp", "tensor"],
        most={"tensor": 8},
        vary={"remat": ["full", "minimal"], "microbatches": [1, 2, 4]},
    )
    found = ts.search(model, space, "time_to_train", run=run, workers=1)
    assert found.proved
    return ts.simulate(model, found.best[0].plan, found.best[0].pod)


def trained(result, run=run):
    return ts.train(result.model, result.plan, result.pod, run)


def table(results):
    rows = {}
    for name, result in results.items():
        whole = trained(result)
        rows[name] = {
            "slice": str(result.pod),
            "step [s]": round(result.step_time_s, 2),
            "MFU": round(result.mfu, 3),
            "HBM": str(result.fit),
            "days": round(whole.wall_s.value / DAY_S, 1),
            "to": round(whole.wall_s.high / DAY_S, 1),
            "million USD": round(whole.cost_usd.value / 1e6, 2),
        }
    return pd.DataFrame(rows).T


found = {name: fastest(name) for name in ("v6e", "7x")}
print(table(found))
