"""The table between the markers of a page."""

import pytest

from tpusim.base import FileError
from tpusim.validation.error_table import in_page


def test_only_what_stands_between_the_markers_changes() -> None:
    page = "before\n<!-- errors -->\nold\nlines\n<!-- /errors -->\nafter\n"
    assert in_page(page, "new\n") == "before\n<!-- errors -->\nnew\n<!-- /errors -->\nafter\n"


def test_a_page_without_markers_is_told_which() -> None:
    with pytest.raises(FileError, match=r"no lines <!-- errors --> and <!-- /errors -->"):
        in_page("text", "new\n")
