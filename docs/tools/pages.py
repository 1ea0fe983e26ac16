"""The pages of the site: the documents of the repository, each under its own path.

The API page has whole docstrings there.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

SHOWN = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CITATION.cff",
    "LICENSE",
    "docs/*.md",
    "docs/*.svg",
    "docs/*.png",
    "docs/notebooks/*.ipynb",
    "docs/tools/*.py",
    "docs/tools/*.css",
    "experiments/**/*.md",
    "experiments/**/*.svg",
    "experiments/**/*.py",
    "tests/measured/*.csv",
    "experiments/**/*.toml",
    "experiments/diagnosis/*.yml",
    "experiments/own_calibration/*.csv",
    "experiments/serving/measured.csv",
    "hardware_specs/*.toml",
    "tests/analytic/*.csv",
    "tests/measured/*.md",
    "tests/measured/**/*.toml",
    "tests/validation/*.md",
    "tests/validation/*.csv",
    "tpusim/failures/causes.toml",
    "tpusim/serving/engines/engines.toml",
)
"""Patterns of the files that the site shows; links may lead to any of them."""

NAME = re.compile(r"^- `ts\.([\w.]+)(?:\(.*\))?`.*$", re.M)
"""A public name in docs/api.md, with its signature and summary."""


def on_files(files: Files, config: Any) -> Files:
    """Replace the files of `docs_dir` by those of the repository; the theme's own stay."""
    root = Path(config.config_file_path).parent
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    for path in sorted({path for pattern in SHOWN for path in root.glob(pattern)}):
        uri = path.relative_to(root).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Show the docstrings of the public names on the API page."""
    if page.file.src_uri != "docs/api.md":
        return markdown
    return NAME.sub(lambda name: f"\n::: tpusim.{name[1]}\n", markdown)
