"""`nextfit accept`: does this model, as it is served here, do what it should? Tasks with answers that can be checked.

The tasks' words, templates and schemas are of no use to anyone who trains: `train/` must not import them.
"""
