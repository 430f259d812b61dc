"""The terminal chat (prompt, screen, streaming answers, approvals) and the one-shot answer of `nanobot agent -m`."""
