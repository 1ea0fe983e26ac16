"""The docstrings of the API page, with the entries of each as a list."""

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from docstring_entries import as_markdown


class Lists(griffe.Extension):
    """Rewrites each docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of `obj`."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
