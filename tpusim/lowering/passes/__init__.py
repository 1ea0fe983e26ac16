"""Passes over the bodies of a partitioned graph, one file for each kind of rewrite."""
