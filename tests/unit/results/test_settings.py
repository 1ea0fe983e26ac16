"""Settings: what advice prints is what a shell hands on."""

import shlex

import pytest

from tpusim.results.settings import command_line, settings_of


@pytest.mark.parametrize("name", ["fsdp", "a'b", "a b", "$(x)", "a;b", '"'])
def test_a_shell_hands_on_every_setting_as_it_is(name: str) -> None:
    settings = settings_of({"mesh": {name: 4}, "save": [name], "microbatches": 2})
    words = shlex.split(command_line(settings))
    assert words == [word for setting in settings for word in ("--set", setting)]


def test_keys_of_another_section_have_its_name() -> None:
    assert settings_of({"readers": 32}, "input") == ("input.readers=32",)
