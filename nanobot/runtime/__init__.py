"""The composition root: a config in, a working bot out. It maps the config to the policies and services below it."""
