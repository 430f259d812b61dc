"""The agent: a message in, a turn, a reply out. It knows no channel and no screen; they meet at the bus.

Reading order: turn (plain data) -> run/runner (model and tools until an answer) -> pipeline (one turn, phase by phase)
-> loop (a message finds its lane).
"""
