"""Command lines of serving engines and their benchmark: reading and printing.

What a command means for a prediction is said by `setup.py` and `benchmark.py`.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Self

from tpusim.base.errors import PlanError, nearest
from tpusim.base.shipped_table import shipped_table
from tpusim.base.shown_value import cut

_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kKmM])")
_MULTIPLES = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}
_NO = "--no-"


class CommandProgram(NamedTuple):
    """A program with its flags.

    name: of its table in `flags.toml`.
    words: the words that its command begins with.
    engine: the serving engine.
    positional: the flag that an argument without one stands for; empty for none.
    short: flags by their other spellings.
    kinds: kinds of values of the flags that have an effect.
    idle: kinds of values of those without.
    """

    name: str
    words: tuple[str, ...]
    engine: str
    positional: str
    short: Mapping[str, str]
    kinds: Mapping[str, str]
    idle: Mapping[str, str]

    def flag(self, written: str) -> str:
        """Return the name of a flag as it is written, or raise PlanError with the nearest name."""
        bare = written if written in self.short else written.replace("_", "-")
        name = self.short.get(bare, bare)
        if name in self.kinds or name in self.idle:
            return name
        near = nearest(name, [*self.kinds, *self.idle, *self.short])
        raise PlanError(f"`{' '.join(self.words)}`: the flag {cut(written)} is not known; {near}")

    def kind(self, flag: str) -> str:
        """Return the kind of a flag's value."""
        return self.kinds.get(flag) or self.idle[flag]


@dataclass(frozen=True, slots=True)
class ServingCommand:
    """A command line of a serving engine or its benchmark.

    program: `vllm-serve`, `sglang-jax` or `vllm-bench`.
    flags: values of the flags that a prediction depends on, in the order written.
    idle: values of those without effect on it.

    >>> command = ServingCommand.read("vllm serve Qwen/Qwen3-8B -tp 4 --port=8000")
    >>> command.flags
    {'--model': 'Qwen/Qwen3-8B', '--tensor-parallel-size': 4}
    >>> print(command)
    vllm serve Qwen/Qwen3-8B --tensor-parallel-size 4 --port 8000
    """

    program: str
    flags: Mapping[str, Any]
    idle: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, line: str) -> Self:
        """Return the command of a shell line; a backslash at an end of line continues it.

        Raise PlanError for a program or a flag that is not known, and a value of another kind.
        """
        try:
            words = shlex.split(line.replace("\\\n", " "), comments=True)
        except ValueError as error:
            raise PlanError(f"the command cannot be read: {error}; close its quotes") from error
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
            words.pop(0)
        program, rest = _program_of(words)
        values = _values(program, rest)
        return cls(
            program.name,
            {flag: value for flag, value in values.items() if flag in program.kinds},
            {flag: value for flag, value in values.items() if flag in program.idle},
        )

    def get(self, flag: str, default: Any = None) -> Any:
        """Return the value of a flag, or the default if it is not written."""
        return self.flags.get(flag, default)

    def words(self) -> tuple[str, ...]:
        """Return the words of the command, without quotes."""
        program = programs()[self.program]
        words = [*program.words]
        for flag, value in {**self.flags, **self.idle}.items():
            words += _written(program, flag, value)
        return tuple(words)

    def __str__(self) -> str:
        return shlex.join(self.words())


@cache
def programs() -> Mapping[str, CommandProgram]:
    """Return the programs of `flags.toml` by name."""
    table = shipped_table("serving", "engines/flags.toml")
    return {name: _program(name, own) for name, own in table.items()}


def _program(name: str, own: Mapping[str, Any]) -> CommandProgram:
    idle = {flag: kind for kind, flags in own["idle"].items() for flag in flags}
    positional = own.get("positional", "")
    return CommandProgram(
        name, tuple(own["words"]), own["engine"], positional, own["short"], own["flags"], idle
    )


def _program_of(words: Sequence[str]) -> tuple[CommandProgram, Sequence[str]]:
    """Return the program that a command begins with, and the words after it."""
    named = [re.sub(r"^(.*/)?python[\d.]*$", "python", word) for word in words]
    for program in programs().values():
        if tuple(named[: len(program.words)]) == program.words:
            return program, words[len(program.words) :]
    known = " or ".join(f"`{' '.join(each.words)} ...`" for each in programs().values())
    raise PlanError(f"the command begins with {cut(' '.join(words[:3]))!r}; write {known}")


def _values(program: CommandProgram, words: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    at = 0
    while at < len(words):
        written, equals, value = words[at].partition("=")
        at += 1
        if not written.startswith("-"):
            flag, given = _positional(program, words[at - 1]), [words[at - 1]]
        elif (flag := _negated(program, written)) and not equals:
            values[flag] = False
            continue
        else:
            flag = program.flag(written)
            given = [value] if equals else _following(program.kind(flag), words[at:])
            at += 0 if equals else len(given)
        if flag in values:
            raise PlanError(f"{flag} is written twice; write it once")
        values[flag] = _value(flag, program.kind(flag), given)
    return values


def _positional(program: CommandProgram, word: str) -> str:
    if program.positional:
        return program.positional
    raise PlanError(f"{cut(word)!r} has no flag before it; write the flag that it is the value of")


def _negated(program: CommandProgram, written: str) -> str:
    """Return the switch that `--no-...` turns off; empty for another flag."""
    flag = f"--{written.removeprefix(_NO)}".replace("_", "-")
    kinds = {**program.kinds, **program.idle}
    return flag if written.startswith(_NO) and kinds.get(flag) == "switch" else ""


def _following(kind: str, words: Sequence[str]) -> list[str]:
    """Return the words that are the value of a flag before them."""
    if kind == "switch":
        return []
    count = 1
    while kind == "ints" and count < len(words) and words[count].isdigit():
        count += 1
    return list(words[:count])


def _value(flag: str, kind: str, given: Sequence[str]) -> Any:
    if kind == "switch":
        return _switch(flag, given)
    if not given:
        raise PlanError(f"{flag} has no value; write one after it")
    if kind == "text":
        return given[0]
    if kind == "ints":
        return tuple(_whole(flag, word) for word in given)
    if kind == "int":
        return _whole(flag, given[0])
    return _table(flag, given[0]) if kind == "json" else _number(flag, given[0])


def _switch(flag: str, given: Sequence[str]) -> bool:
    if given and given[0].lower() not in ("true", "false"):
        raise PlanError(f"{flag} is {cut(given[0])!r}; write it alone")
    return not given or given[0].lower() == "true"


def _whole(flag: str, word: str) -> int:
    if found := _SUFFIXED.fullmatch(word):
        return int(float(found[1]) * _MULTIPLES[found[2]])
    try:
        return int(word)
    except ValueError as error:
        raise PlanError(f"{flag} is {cut(word)!r}; write a whole number, such as 256") from error


def _number(flag: str, word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise PlanError(f"{flag} is {cut(word)!r}; write a number, such as 0.9") from error


def _table(flag: str, word: str) -> dict[str, Any]:
    try:
        value = json.loads(word)
    except json.JSONDecodeError as error:
        raise PlanError(f"{flag} is no JSON: {error}; write an object in quotes") from error
    if not isinstance(value, dict):
        raise PlanError(f"{flag} is {cut(word)}; write a JSON object, such as '{{}}'")
    return value


def _written(program: CommandProgram, flag: str, value: Any) -> list[str]:
    """Return the words of a flag with its value."""
    if flag == program.positional:
        return [str(value)]
    if isinstance(value, bool):
        return [flag if value else f"{_NO}{flag[2:]}"]
    if isinstance(value, tuple):
        return [flag, *map(str, value)]
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
