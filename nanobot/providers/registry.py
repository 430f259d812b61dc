"""The promised import path of the provider table, which is data in config/provider_table.py."""

from nanobot.config.provider_table import PROVIDERS, ProviderSpec, find_by_model, find_by_name

__all__ = ["PROVIDERS", "ProviderSpec", "find_by_model", "find_by_name"]
