"""The JAX of exported steps: functions to copy, which tpusim reads and does not run."""
