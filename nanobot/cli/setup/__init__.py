"""Interactive setup for `nanobot onboard` and `nanobot channels login`, and the probe that tries a model."""
