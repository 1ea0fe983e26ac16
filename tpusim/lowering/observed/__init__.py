"""Rewrites seen in compiled programs that move no published run by more than 0.01 %."""
