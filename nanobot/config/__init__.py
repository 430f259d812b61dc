"""The configuration: shapes, places and tables; no behaviour.

Providers, runtime and all above may import it. Reading order: section (what all shapes share, names by `spelling`),
schema (what may stand in config.json), channels, provider_table and provider_match, paths, loader, saver. The loader
stands on `document` (JSON with places), `keys` (names in both styles), `environment`, `migrate`, `legacy` and
`problems` (what an error says). `loaded_from` is what a config remembers of its file; `sources` tells where each value
came from, `masking` hides the secret ones.
"""
