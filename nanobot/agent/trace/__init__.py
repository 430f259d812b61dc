"""Traces: what happened in each turn, recorded beside it, read back and replayed later."""
