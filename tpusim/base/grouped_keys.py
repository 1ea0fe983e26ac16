"""Keys of a dataclass whose fields are grouped: each key has a flat and a grouped spelling."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tpusim.base.errors import ArgumentError, TpusimError, nearest
from tpusim.base.frame_values import is_missing, is_plain, python_value


@dataclass(frozen=True)
class GroupedKeys:
    """The flat keys of a dataclass (the owner), and the group and field that each stands for.

    The flat key `gather_dtype` is the field `gather` of the group `dtypes`, which may also be
    written as a mapping (`dtypes={"gather": "int8"}`), as a path (`dtypes.gather`, in a sweep) or
    as the group itself (`Numerics(gather="int8")`). Checks of a group name its fields by their
    paths; here they get the spelling that the user chose.

    owner: the class's name, for messages.
    prefix: text that messages put before a key, such as `plan.`.
    error: the type of the errors raised.
    groups: each group's class, by the name of its field in the owner.
    table: (group, field) by flat key, in the order in which keys are listed and written. The group
        is empty for a field of the owner itself.
    own: classes of the parts that have the owner's own fields; none where it has them itself.
    needed: flat keys without a default, where the owner's constructor does not name them.
    """

    owner: str
    prefix: str
    error: type[TpusimError]
    groups: Mapping[str, type[Any]]
    table: Mapping[str, tuple[str, str]]
    own: tuple[type[Any], ...] = ()
    needed: tuple[str, ...] = ()

    @cached_property
    def paths(self) -> Mapping[str, tuple[str, str]]:
        """(group, field) by path."""
        return {f"{group}.{name}": (group, name) for group, name in self.table.values() if group}

    @cached_property
    def _homes(self) -> Mapping[str, tuple[str, str]]:
        """(group, field) by flat key and by path."""
        return {**self.table, **self.paths}

    @cached_property
    def default_groups(self) -> Mapping[str, Any]:
        """Each group with the defaults of its fields."""
        return {name: kind() for name, kind in self.groups.items()}

    @cached_property
    def flat_keys(self) -> Mapping[tuple[str, str], str]:
        """Each flat key by its group and field."""
        return {entry: key for key, entry in self.table.items()}

    def is_known(self, key: str) -> bool:
        """Return True if `key` is a flat key or a path."""
        return key in self._homes

    def field_of(self, key: str) -> tuple[str, str]:
        """Return the group and field of a flat key or a path."""
        return self._homes[key]

    def spelt_out(self, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the flat keys and paths that `given` sets, mappings of groups taken apart."""
        for key, value in given.items():
            if key in self.groups and isinstance(value, Mapping):
                yield from ((f"{key}.{name}", inner) for name, inner in value.items())
            else:
                yield key, value

    def merged(self, base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of `base` and `changes`; where both set one, that of `changes`."""
        changed = dict(self.spelt_out(changes))
        fields_set = {self.field_of(key) for key in changed}
        kept = {k: v for k, v in self.spelt_out(base) if self.field_of(k) not in fields_set}
        return kept | changed

    def check_once(self, keys: Iterable[str]) -> None:
        """Raise the owner's error if two of the flat keys and paths set the same value."""
        written: dict[tuple[str, str], str] = {}
        for key in keys:
            first = written.setdefault(self._homes[key], key)
            if first != key:
                raise self._twice(first, key)

    def fields_of(
        self,
        given: Mapping[str, Any],
        kinds: Mapping[tuple[str, str], Any],
        old: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the owner's fields that `given` sets, its groups built and checked.

        given: values by key, in any spelling; NumPy's become Python's.
        kinds: the type of each group and field.
        old: groups that `given` changes; those that are not here start from their defaults.

        Raise the owner's error for a key that is written twice and for what a group refuses, and
        ArgumentError for an unknown key.
        """
        self._check_replaced(given)
        found = {k: v for k, v in given.items() if isinstance(v, self.groups.get(k, ()))}
        written = {k: v for k, v in self.spelt_out(given) if k not in found}
        for key, value in written.items():
            if key not in self._homes:
                raise self._unknown(key, value)
            if not is_plain(value):
                written[key] = self._read(key, value, kinds[self.field_of(key)])
        self.check_once(written)
        changes: dict[str, dict[str, str]] = {}
        for key, value in written.items():
            group, name = self.field_of(key)
            if not group:
                found[name] = value
            elif group in found:
                raise self._twice(group, key)
            else:
                changes.setdefault(group, {})[name] = key
        for group, keys in changes.items():
            values = {name: written[key] for name, key in keys.items()}
            found[group] = self._built(group, values, keys, (old or {}).get(group))
        return found

    def _read(self, key: str, value: Any, kind: Any) -> Any:
        """Return a value as Python's own; raise where a frame has none, but for floats.

        Those are checked with their limits.
        """
        parts = value.items() if isinstance(value, Mapping) else ()
        for name, part in ((key, value), *((f"{key}.{inner}", part) for inner, part in parts)):
            if is_missing(part) and kind is not float:
                raise self.error(
                    f"{self.prefix}{name} is {part}, which a data frame has where a row holds no "
                    "value; leave the key out, or write a value"
                )
        return python_value(value, kind)

    def _check_replaced(self, given: Mapping[str, Any]) -> None:
        """Raise where `dataclasses.replace` gave one key of a group, and so drops the others."""
        if self.groups.keys() <= given.keys():
            for key, kind in self.groups.items():
                if not isinstance(given[key], (kind, Mapping)):
                    raise self.error(
                        f"{key} = {given[key]!r} would reset the other keys of {self.prefix}{key}; "
                        f"write .replace({key}={given[key]!r}), which keeps them"
                    )

    def _unknown(self, path: str, value: Any) -> Exception:
        group, _, name = path.partition(".")
        if group not in self.groups:
            hint = nearest(path, [*self.table, *self.groups])
            return ArgumentError(f"{self.owner} has no key {path!r}; {hint}")
        names = [inner for home, inner in self.table.values() if home == group]
        where = f"{self.prefix}{group}"
        if not name:
            return self.error(f"{where} is {value!r}; write a table of {', '.join(names)}")
        return self.error(f"{where} has no key {name!r}; {nearest(name, names)}")

    def _built(
        self, group: str, values: Mapping[str, Any], written: Mapping[str, str], old: Any
    ) -> Any:
        """Return the group with its values; its errors name the keys as they were written."""
        try:
            return self.groups[group](**values) if old is None else replace(old, **values)
        except TpusimError as error:
            as_paths = {name for name, path in written.items() if "." in path}
            if len(as_paths) == len(written):
                raise
            raise type(error)(self.with_flat_keys(str(error), group, as_paths)) from error

    def with_flat_keys(self, text: str, group: str = "", but: Collection[str] = ()) -> str:
        """Return a sentence with flat keys in place of paths, of one group or of all.

        but: fields of the group that keep their paths.
        """
        for path, (home, name) in self.paths.items():
            if group in ("", home) and name not in but:
                text = re.sub(rf"\b{re.escape(path)}\b", self.flat_keys[home, name], text)
        return text

    def _twice(self, one: str, other: str) -> TpusimError:
        return self.error(
            f"{self.prefix}{one} and {self.prefix}{other} are both given, but they set the same "
            "value; write one of them"
        )


def flat_keys_of(keys: type, groups: Mapping[str, type[Any]]) -> dict[str, tuple[str, str]]:
    """Return the group and field of each flat key that a TypedDict has, see `GroupedKeys.table`.

    A key of a group is annotated with its path, `Annotated[bool, "norms.before"]`; what has the
    name of a group and no path is the group.
    """
    found = {}
    for key, kind in keys.__annotations__.items():
        path = getattr(kind, "__metadata__", (key,))[0]
        group, _, name = path.rpartition(".")
        if path not in groups:
            found[key] = (group, name)
    return found


class GroupedFields:
    """A dataclass whose fields are read and changed by their flat keys too.

    KEYS: the flat keys.
    """

    __slots__ = ()
    KEYS: ClassVar[GroupedKeys]

    def _fill(self, given: Mapping[str, Any]) -> None:
        """Set all fields: to what is given in any spelling, or to their defaults."""
        found = {**self.KEYS.default_groups, **self.KEYS.fields_of(given, self._kinds())}
        for field in fields(self):  # type: ignore[arg-type]
            if field.name in found:
                value = found[field.name]
            else:
                factory = field.default_factory
                value = field.default if factory is MISSING else factory()
            object.__setattr__(self, field.name, value)

    def _kinds(self) -> Mapping[tuple[str, str], Any]:
        owner: Any = type(self)
        return _kinds_of(owner)

    def replace(self, **keys: Any) -> Self:
        """Return a copy with some keys changed, flat or grouped; the rest of a group stays.

        `plan.replace(remat="full", dtypes={"gather": "int8"})`. A sweep's paths are keys as well:
        `plan.replace(**{"dtypes.gather": "int8"})`.
        """
        old = {name: getattr(self, name) for name in self.KEYS.groups}
        return replace(self, **self.KEYS.fields_of(keys, self._kinds(), old))  # type: ignore[type-var]

    def value(self, key: str) -> Any:
        """Return the value of a flat key or a path."""
        group, name = self.KEYS.field_of(key)
        return getattr(getattr(self, group) if group else self, name)

    def flat(self) -> dict[str, Any]:
        """Return the values of all flat keys, in the order of the table."""
        return {key: self.value(key) for key in self.KEYS.table}

    if not TYPE_CHECKING:  # the package itself reads groups, and is checked to

        def __getattr__(self, key: str) -> Any:
            if key not in self.KEYS.table:
                text = f"a {self.KEYS.owner} has no attribute {key!r}"
                own = [*self.KEYS.table, *self.KEYS.groups]
                raise AttributeError(text if key[:1] == "_" else f"{text}; {nearest(key, own)}")
            return self.value(key)


@cache
def _kinds_of(owner: Any) -> Mapping[tuple[str, str], Any]:
    """Return the type of each group and field; the group is empty for the owner's own."""
    homes = {"": owner, **owner.KEYS.groups}
    return {(home, f.name): f.type for home, kind in homes.items() for f in fields(kind)}
