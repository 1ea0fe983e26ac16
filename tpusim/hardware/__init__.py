"""Chips, torus topologies, slices and placements: the catalogue and pure geometry."""

from tpusim.hardware.catalogue import Sourced, chip_names, load_chip, load_entries
from tpusim.hardware.chip import Chip, Costs, Device, Rates
from tpusim.hardware.layouts import candidates, placements, whole_dimension_placements
from tpusim.hardware.legality import legal_shapes, parse_shape
from tpusim.hardware.placement import Placement, placement_from
from tpusim.hardware.slices import Slice, parse_slice
from tpusim.hardware.spans import DIE, Span
from tpusim.hardware.topology import Topology

__all__ = [
    "DIE",
    "Chip",
    "Costs",
    "Device",
    "Placement",
    "Rates",
    "Slice",
    "Sourced",
    "Span",
    "Topology",
    "candidates",
    "chip_names",
    "legal_shapes",
    "load_chip",
    "load_entries",
    "parse_shape",
    "parse_slice",
    "placement_from",
    "placements",
    "whole_dimension_placements",
]
