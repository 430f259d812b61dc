"""The configuration: shapes, places and tables; no behaviour. Read schema, then paths, then loader."""
