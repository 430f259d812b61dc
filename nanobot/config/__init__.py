"""The configuration: schema, file locations and the provider table.

`schema` defines config.json, `loader` reads it and `saver` writes it; `sources` tells where each value came from.
"""
