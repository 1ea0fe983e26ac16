"""The JAX of exported steps: code to copy, which tpusim does not run.

`library_source` takes from these files the functions that a step needs. So each stands alone, as a
reader of that step would write it.
"""
