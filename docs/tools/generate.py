"""Writes the parts of the documents that follow from the code.

    python docs/tools/generate.py          # write
    python docs/tools/generate.py --check  # exit with 1 where a page is out of date

run_file.md: the keys of a run file, from the classes that they fill. compiler.md: the passes of the
lowering, and how compiled programs move what they move. models.md: the families of Hugging Face
configs. api.md: the public names. your_own_architecture.md: the methods of the graph writer.
accuracy.md, user_guide.md: how far off plans are in HBM. accuracy.md: what ranges hold of
the runs that were published after theirs. serving.md: the metrics of serving. README.md: what its
Python prints.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "plan_vs_compiler"))
sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "calibration"))

import api_page
import cookbook
import coverage_by_time
import hbm_errors
import key_tables
import mechanisms

from tpusim.lowering.pass_manager import all_passes
from tpusim.models.hf.families import families, refused_types
from tpusim.serving import NUMBERS, TIMES

DOCS = Path(__file__).parents[1]


def tables() -> dict[str, dict[str, str]]:
    """The tables of each page, by the name of their markers."""
    return {
        "run_file.md": key_tables.tables(),
        "compiler.md": {"passes": _passes(), "mechanisms": mechanisms.markdown() + "\n"},
        "user_guide.md": {"hbm": hbm_errors.sentence()},
        "accuracy.md": {"hbm": hbm_errors.table(), "by-time": coverage_by_time.table()},
        "api.md": {"names": api_page.listed()},
        "your_own_architecture.md": {"writer": api_page.writer()},
        "serving.md": {"metrics": _metrics()},
        "models.md": {"families": _families(), "refused": _refused()},
    }


def _metrics() -> str:
    """The metrics of serving, each with its unit and its definition."""
    lines = ["| metric | unit | definition |", "| --- | --- | --- |"]
    lines += [
        f"| {metric.title} | {metric.unit or 'fraction'} | {metric.definition} |"
        for metric in (*TIMES.values(), *NUMBERS.values())
    ]
    return "\n".join(lines) + "\n"


def _families() -> str:
    """The types of configs that are read, by architecture, and those with parts left out."""
    types, left_out = defaultdict(list), defaultdict(list)
    for family in families():
        names = [f"`{name}`" for name in family.types]
        types[family.kind] += names
        for what in (*family.always, *(f"{w} (`{key}`)" for key, w in family.left_out.items())):
            left_out[what].append(names[0])
    lines = [f"- **{kind}**: {', '.join(names)}" for kind, names in types.items()]
    lines += ["", "| not modelled | in configs of |", "| --- | --- |"]
    lines += [f"| {what} | {', '.join(names)} |" for what, names in left_out.items()]
    return "\n".join(lines) + "\n"


def _refused() -> str:
    """The operations that several types of configs are refused for."""
    missing = defaultdict(list)
    for name, (what, _) in refused_types().items():
        missing[what].append(f"`{name}`")
    shown = {what: names for what, names in missing.items() if len(names) > 1}
    others = len(refused_types()) - sum(map(len, shown.values()))
    lines = ["| missing | `model_type` |", "| --- | --- |"]
    lines += [f"| {what} | {', '.join(names)} |" for what, names in shown.items()]
    lines.append(f"| other operations | {others} further types |")
    return "\n".join(lines) + "\n"


def _passes() -> str:
    """The passes that programs showed; the plan itself asks for the others."""
    shown = [each for each in all_passes() if each.shown_by]
    lines = ["| pass | effect | applies to | evidence |", "| --- | --- | --- | --- |"]
    for each in shown:
        name = f"`{each.name}`" + ("\\*" if each.observed else "")
        lines.append(f"| {name} | {each.does} | {each.when} | {each.shown_by} |")
    others = ", ".join(f"`{each.name}`" for each in all_passes() if not each.shown_by)
    return "\n".join(lines) + f"\n\nOther passes carry out requests of the plan: {others}.\n"


def in_page(page: str, found: Mapping[str, str]) -> str:
    """The page with the tables between their markers."""
    for name, lines in found.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{lines}{end}{rest.split(end)[1]}"
    return page


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or say which of them are out of date."""
    stale = []
    pages = {name: partial(in_page, found=found) for name, found in tables().items()}
    for name, renewed in {"../README.md": cookbook.with_outputs, **pages}.items():
        old = (DOCS / name).read_text("utf-8")
        new = renewed(old)
        if new != old:
            stale.append(name)
            if arguments != ["--check"]:
                (DOCS / name).write_text(new, "utf-8")
    print(*stale, sep="\n", end="")
    return int(bool(stale) and arguments == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
