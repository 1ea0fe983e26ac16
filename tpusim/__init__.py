"""Predict how a training step runs on a TPU pod: step time, MFU, memory, and why.

Names of the front door load on first use, so that importing the package stays cheap.
"""
