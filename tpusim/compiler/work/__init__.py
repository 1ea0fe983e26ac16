"""The work of compiled instructions: fusions, dots and kernels."""
