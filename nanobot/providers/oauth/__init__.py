"""Accounts instead of keys: logging in once, keeping the tokens, renewing them before they end.

The providers that are reached by an account and the `provider` commands import it. Reading order: accounts (what is
kept), tokens (a token that is good now), screen (who is shown what to do), then how each kind of account is got and
renewed: openai (browser: pkce, callback, claims) and github (device_flow), both over authority; errors is how it fails.
"""
