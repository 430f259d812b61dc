"""Chat messages: their shapes, how any history is made legal, what a person sees of them, what they weigh.

Anyone may import it; it imports nobody but utils. Read types, then repair, shown, tokens.
"""
