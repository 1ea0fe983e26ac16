"""HBM use in the compiler's dump: the total, the heap, and the buffers live at its peak."""

import re
from pathlib import Path

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*)")
_VALUE = re.compile(
    r"^ value: <\d+ (\S+?)(\{[\d,]*\})?(?: \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\): (\S+)"
)
_RANGE = re.compile(r"^    (\S+?)(\{[\d,]*\}):(\d+)-(\d+)$")


def read_dump(folder, largest=12):
    """Read bytes of HBM: `total` = `arguments` + `outputs` that share no argument + `heap`.

    host: bytes of one device that are offloaded to the host.
    live: the most bytes alive in the heap at one time; the rest of the heap is fragmentation.
    peak: the largest buffers alive then.
    """
    text = {kind: _text(folder, kind) for kind in
            ("memory-usage-report", "buffer-assignment", "live-range")}  # fmt: skip
    total = int(re.search(r"color=0\)\nTotal bytes: (\d+)", text["memory-usage-report"])[1])
    arguments = outputs = heap = host = 0
    values, inside = [], False
    for line in text["buffer-assignment"].splitlines():
        if found := _ALLOCATION.match(line):
            size, what = int(found[1]), found[2]
            inside = what == "preallocated-temp:"
            heap += size if inside else 0
            host += size if what.startswith("color 5, preallocated-temp") else 0
            arguments += size if "parameter" in what and "color" not in what else 0
            outputs += size if "maybe-live-out" in what and "parameter" not in what else 0
        elif inside and (found := _VALUE.match(line)):
            values.append((found[1] + (found[2] or "{}"), int(found[3]), int(found[4]), found[5]))
    ranges = {m[1] + m[2]: (int(m[3]), int(m[4]))
              for m in map(_RANGE.match, text["live-range"].splitlines()) if m}  # fmt: skip
    when, live = _fullest(values, ranges)
    sizes = {
        "total": total, "arguments": arguments, "outputs": outputs, "heap": heap, "live": live,
        **({"host": host} if host else {}),
    }  # fmt: skip
    names = _op_names(_text(folder, "before_buffer_assignment"))
    peak = [_shown(slot, names) for slot in _alive(values, ranges, when)[:largest]]
    return sizes, peak, _at(text["live-range"], when, names)


def _text(folder, kind):
    (file,) = Path(folder).glob(f"*{kind}.txt")
    return file.read_text("utf-8")


def _fullest(values, ranges):
    """Return the first time of the schedule at which most bytes are alive, and their number."""
    times = sorted({ranges[name][0] for name, *_ in values if name in ranges})
    sums = [(sum(s[1] for s in _alive(values, ranges, t)), -t) for t in times]
    most, when = max(sums)
    return -when, most


def _alive(values, ranges, when):
    """Return the values alive at a time, largest first; of those at one offset the largest only."""
    alive = [v for v in values if v[0] in ranges and ranges[v[0]][0] <= when <= ranges[v[0]][1]]
    alive.sort(key=lambda v: (-v[1], v[2], v[0]))
    slots, taken = [], []
    for value in alive:
        start, end = value[2], value[2] + value[1]
        if all(end <= a or b <= start for a, b in taken):
            slots.append(value)
            taken.append((start, end))
    return slots


def _op_names(text):
    """Return value -> operation; a loop's carry is named after the operation that produces it."""
    found = re.finditer(r'^\s*(?:ROOT )?%?(\S+) = .*?op_name="([^"]*)"', text, re.MULTILINE)
    names = {m[1]: m[2] for m in found}
    for loop, body in re.findall(r"%(\S+) = [^\n]* while\([^\n]*body=%([^\s,]+)", text):
        code = text[text.index(f"\n%{body} ") :].split("\n}\n\n", 1)[0]
        (carry,) = re.findall(r"%(\S+) = [^\n]* parameter\(0\)", code)
        made = re.findall(r"ROOT [^\n]* tuple\(([^)]*)\)", code)
        for place, one in enumerate(re.findall(r"%([^\s,]+)", made[0] if made else "")):
            if one in names:
                names[f"{loop}{{{place}}}"] = names[f"{carry}{{{place}}}"] = names[one]
    return names


def _at(text, when, names):
    name = re.search(rf"^    {when}:(\S+)$", text, re.MULTILINE)[1]
    return f"{name} {short(names.get(name, ''))}".strip()


def short(name):
    """Return an operation's name without common parts: `fwd`, `bwd` and, in it, `again`."""
    name = re.sub(r"^jit\([^/]*\)/|closed_call/|checkpoint/|while/body/", "", name)
    name = re.sub(r"jit\(dynamic_(update_)?index_in_dim\)/", "", name)
    name = re.sub(r"transpose\(jvp\(([^()]*)\)\)", r"bwd \1", name)
    name = re.sub(r"jvp\(([^()]*)\)", r"fwd \1", name)
    return name.replace("rematted_computation", "again").replace(" /", "/").replace("\\'", "")


def _shown(slot, names):
    name, size, _, shape = slot
    base = name.split("{")[0]
    return [size, re.split(r"[{ ]", shape)[0], short(names.get(name, names.get(base, base)))]
