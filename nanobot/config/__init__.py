"""The configuration: schema, file locations and the provider table.

`schema` defines config.json, `loader` reads it and tells where each value came from, and `saver` writes it.
"""
