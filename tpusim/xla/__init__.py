"""JAX programs and HLO: what the TPU compiler made, as a program that the engine replays.

Behind the extra `xla`: jaxlib reads HLO, and jax with libtpu compiles without a TPU.
"""
