"""Lowering of a compiled module to a program that the engine runs."""
