"""The agent: a message comes in, a turn runs, a reply goes out. It knows the bus, but no channel and no screen.

`loop.AgentLoop` decides what a message is and finds its lane; `pipeline` runs one turn; `engine` asks the model and
runs its tools. Each other package is a subject with its types, service, commands and texts.
"""
