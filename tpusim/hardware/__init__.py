"""Chips, torus topologies, slices and placements: the catalogue and pure geometry."""

from tpusim.hardware.catalogue import Sourced, chip_names, load_chip, load_entries
from tpusim.hardware.chip import DTYPES, Chip, CostConstants, Device, PeakRates
from tpusim.hardware.chip_fields import format_shape, parse_shape
from tpusim.hardware.chip_table import show_chip, show_chips
from tpusim.hardware.compiler_rules import CompilerRules
from tpusim.hardware.legality import default_shape, legal_shapes
from tpusim.hardware.placement import (
    DCN_PREFIX,
    ListedGroups,
    Placement,
    check_mesh,
    placement_from,
)
from tpusim.hardware.placement_candidates import candidates, placements
from tpusim.hardware.slice_rules import SliceRules, can_twist
from tpusim.hardware.slices import Slice, parse_slice
from tpusim.hardware.slow_parts import (
    SLOW_ADVICE,
    SlowChip,
    SlowLink,
    SlowParts,
    SlowSlice,
    link_ends,
    speed_words,
)
from tpusim.hardware.spans import DIE, Span
from tpusim.hardware.topology import DIMENSION_NAMES, TWISTED, Topology

__all__ = [
    "DCN_PREFIX",
    "DIE",
    "DIMENSION_NAMES",
    "DTYPES",
    "SLOW_ADVICE",
    "TWISTED",
    "Chip",
    "CompilerRules",
    "CostConstants",
    "Device",
    "ListedGroups",
    "PeakRates",
    "Placement",
    "Slice",
    "SliceRules",
    "SlowChip",
    "SlowLink",
    "SlowParts",
    "SlowSlice",
    "Sourced",
    "Span",
    "Topology",
    "can_twist",
    "candidates",
    "check_mesh",
    "chip_names",
    "default_shape",
    "format_shape",
    "legal_shapes",
    "link_ends",
    "load_chip",
    "load_entries",
    "parse_shape",
    "parse_slice",
    "placement_from",
    "placements",
    "show_chip",
    "show_chips",
    "speed_words",
]
