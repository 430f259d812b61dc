"""The providers, by name and by model. Their rows are data in config/provider_table.py; people look for them here."""

from nanobot.config.provider_table import PROVIDERS, ProviderSpec, find_by_model, find_by_name

__all__ = ["PROVIDERS", "ProviderSpec", "find_by_model", "find_by_name"]
