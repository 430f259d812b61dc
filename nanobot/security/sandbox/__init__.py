"""The wall around commands: what the operating system itself keeps from them, whatever they are made of.

Reading order: view (what a command may see and write; looking: where that really is; sockets of the host it must not
talk to), limits (how much of the machine it may take), bwrap (the view as arguments of bubblewrap), landlock (beside
it, or alone), seccomp (calls that reach past every view), links (what no wall holds, put back), probe (what of it holds
on this machine, found out by doing it), walls (all of it together, for whoever runs commands).
"""
