"""The help of commands that read a plan: its keys that take one of some words."""

from typing import Any

from typer.core import TyperCommand


class PlanCommand(TyperCommand):
    """A command whose help ends with the plan's keys of some words, and these words."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the keys; they load only when help is asked for."""
        from tpusim.plan import PLAN_CHOICES, PLAN_KEYS

        rows = [(f"plan.{key}", ", ".join(PLAN_CHOICES[key])) for key in PLAN_KEYS.table
                if key in PLAN_CHOICES]  # fmt: skip
        with formatter.section("Keys of some words"):
            formatter.write_dl(rows)
