"""What a shell completes besides commands and options: keys of a plan, chips, explanations.

The shells' scripts are those of Typer, with which the command line is made (`tpusim
--install-completion`).
"""

from collections.abc import Iterator

from tpusim.cli.explanations import EXPLANATIONS


def complete_setting(incomplete: str) -> Iterator[str]:
    """Yield the settings of a plan that begin so: `plan.remat=`, and then its values."""
    from tpusim.plan import PLAN_CHOICES, PLAN_KEYS

    for key in PLAN_KEYS.table:
        words = [f"plan.{key}={word}" for word in PLAN_CHOICES.get(key, ())]
        whole = f"plan.{key}="
        yield from (
            one
            for one in (words if incomplete.startswith(whole) and words else [whole])
            if one.startswith(incomplete)
        )


def complete_chip(incomplete: str) -> list[str]:
    """Return the chips of the catalogue that begin so."""
    from tpusim.hardware import chip_names

    return [name for name in chip_names() if name.startswith(incomplete)]


def complete_explanation(incomplete: str) -> list[str]:
    """Return the choices of `--explain` that begin so."""
    return [name for name in EXPLANATIONS if name.startswith(incomplete)]
