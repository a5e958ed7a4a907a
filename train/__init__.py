"""Trains the small model that ships with NextFit: `python -m train OUT`. Nothing in `nextfit` imports this."""
