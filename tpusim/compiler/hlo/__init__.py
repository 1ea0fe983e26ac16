"""Reading HLO: its text as modules of computations and instructions."""
