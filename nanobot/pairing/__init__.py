"""Pairing: a stranger asks, the owner approves. Who may speak on which channel, and who is owner there.

Channels, runtime and cli may import it. Read senders (who wrote, however it is spelled), then codes (what a stranger is
given), book (what pairing.json says) and store (the file); knocks (how often one may ask for a code), words (what an
owner says about it in a chat).
"""
