"""Chat messages: their shapes, how any history is made legal, what they weigh.

Anyone may import it; it imports nobody but utils. Read types, then repair, then tokens.
"""
