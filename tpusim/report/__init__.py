"""A result as files: text, JSON, tables, figures and a trace.

The names are listed in `__init__.pyi` and load on first use: a command that writes no report loads
no figures.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
