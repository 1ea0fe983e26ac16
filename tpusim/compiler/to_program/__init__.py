"""Translation of a compiled module into a program that the engine runs."""
