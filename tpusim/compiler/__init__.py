"""Compiled programs: JAX functions compiled for a TPU slice, or HLO, translated for replay.

Needs the extra `xla`: jaxlib reads HLO, and jax with libtpu compiles without a TPU. Neither is
imported before it is needed. The names are listed in `__init__.pyi` and load on first use, so that
a plan, which asks only whether it is a compiled program, loads no more.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
