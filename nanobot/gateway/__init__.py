"""The gateway: what lives for days. It holds everything below it together, and tells how it is.

Only the command line may import it. Read service (what lives in it, how it begins and leaves), wishes (why it leaves),
lock (one a data folder), members (how one dead part leaves the others alone), roster (its channels) with terminal
(chats that are open at the terminal), jobs and heart (what runs by the clock), live (config changes while it runs),
dead_letters (what no platform took) and owners (where an owner can be told so), pulse and report (how it is, by
evidence). Then its faces, each a listener: health (HTTP) and control (the local socket), with requests (what is asked
there), wire (in which language) and client (from the other end). Last daemon (systemd, launchd).
"""
