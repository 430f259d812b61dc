"""Wrappers around providers: retry, fallback, circuit breaker, and the meter that writes the ledger."""
