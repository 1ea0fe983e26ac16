"""Serving: steps of prefill and decode, and a server whose steps they are."""
