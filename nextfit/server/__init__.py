"""HTTP and nothing else: schemas, routes, keys, streaming, and the process that the engine runs in."""
