"""HTTP and nothing else: schemas, routes, keys, streaming, and the thread that drives the engine."""
