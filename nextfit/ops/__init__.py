"""Operators: one folder each. `reference.py` is the definition, in plain PyTorch, and runs on any device.

Sampling noise alone is made by numpy.
"""
