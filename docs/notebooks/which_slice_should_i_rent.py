# %% [markdown]
# # Which slice should I rent?
#
# The same model and batch on slices of several generations: time and price of a trillion tokens.

# %%
import pandas as pd

import tpusim as ts

plan = ts.Plan(mesh={"fsdp": 64}, seq_len=8192, global_batch=128)
rows = []
for name in ("v5e-64", "v5p-128", "v6e-64", "v4-128"):
    result = ts.simulate("llama3.1-8b", plan, name)
    hours = 1e12 / result.tokens_per_s / 3600
    dollars = hours * result.pod.chips * result.pod.chip.price
    rows.append(
        (
            name,
            result.pod.chips,
            result.step_time_s,
            result.mfu,
            str(result.fit),
            hours / 24,
            dollars,
        )
    )
columns = ["slice", "chips", "step [s]", "MFU", "HBM", "days for 1T tokens", "USD for 1T tokens"]
table = pd.DataFrame(rows, columns=columns).set_index("slice").sort_values("USD for 1T tokens")
print(table.round({"step [s]": 2, "MFU": 3, "days for 1T tokens": 0, "USD for 1T tokens": -3}))

# %% [markdown]
# How far does the cheapest one that fits grow? Weak scaling keeps the batch of a chip.

# %%
best = table[table["HBM"] == "fits"].index[0]
curves = ts.scaling("llama3.1-8b", plan, best, chips=[64, 128, 256])
print(best)
axes = ts.plot.scaling(curves.table)
