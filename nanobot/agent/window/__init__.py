"""The context window: which part of a history is sent to a model, and how it shrinks when it does not fit."""
