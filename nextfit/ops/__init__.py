"""Operators: one folder each. `reference.py` is the definition, in plain PyTorch, and runs on any device.

The words of sampling noise alone are numpy's.
"""
