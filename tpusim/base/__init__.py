"""Errors, units, the phases of a step, and text files, for every package."""
