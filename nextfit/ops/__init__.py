"""Operators: one folder each, its contract in `__init__`. `reference.py` is the definition, in plain PyTorch, and runs
on any device; `triton.py`, where there is one, is imported when a call takes it. `dispatch` says which one does.

Sampling noise alone is made by numpy.
"""
