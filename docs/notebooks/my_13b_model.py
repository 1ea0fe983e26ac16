# %% [markdown]
# # My 13B model
#
# A model of your own, a plan and a slice; what the step takes, and what to change.

# %%
import tpusim as ts

model = ts.models.Transformer(
    layers=40, embed=5120, mlp=13824, heads=40, vocab=32000, name="my-13b"
)
plan = ts.Plan(mesh={"fsdp": 256}, seq_len=4096, global_batch=256)
print(f"{model.parameter_count / 1e9:.1f}B parameters")
result = ts.simulate(model, plan, "v5e-256")
result

# %% [markdown]
# The numbers are attributes; `print(result)` is the whole report, and figures come on request.

# %%
print(f"{result.step_time_s:.3f} s a step, MFU {result.mfu:.1%}, fits: {result.fits}")
axes = ts.plot.breakdown(result)
# %% [markdown]
# How much would tensor parallelism help, or saving more activations?

# %%
for change in ({"mesh": {"fsdp": 128, "tensor": 2}}, {"remat": "minimal"}, {"save": ["q", "k"]}):
    other = ts.simulate(model, plan.replace(**change), "v5e-256")
    print(f"{other.step_time_s:.3f} s, {other.fit}: {change}")
