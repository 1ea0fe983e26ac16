"""What a drawing in SVG shows, however its paths are written."""

import re
from xml.etree import ElementTree


def drawing(svg: bytes) -> list[tuple[str, list[tuple[str, str]]]]:
    """The elements of a drawing with their attributes, and paths as points."""
    found = []
    for element in ElementTree.fromstring(svg).iter():
        given = dict(element.attrib)
        if "d" in given:
            given["d"] = str(points(given["d"]))
        found.append((element.tag, sorted(given.items())))
    return found


def points(path: str) -> list[tuple[str, ...]]:
    """The commands of a path with their coordinates, both of them for each line."""
    found: list[tuple[str, ...]] = []
    for command, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        at = tuple(text.split())
        if command in "HV":
            x, y = found[-1][1:]
            command, at = "L", (at[0], y) if command == "H" else (x, at[0])
        found.append((command, *at))
    return found
