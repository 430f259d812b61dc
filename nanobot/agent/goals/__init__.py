"""Goals: what a session works at by itself, over turns and restarts, until it is reached, stopped, or costs too much.

For the wiring, which opens them; the `goal` tool and the pipeline know ports of their own. Reading order: goal (what
it is), store (where it lies), words (what people and models are told), manager (what is done about it), keeper (what
the tool says of it), drive (turn after turn).
"""
