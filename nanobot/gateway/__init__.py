"""The gateway: what lives for days. It holds everything below it together, and tells how it is.

Only the command line may import it. Read service (what lives in it, how it begins and leaves), lock (one a data
folder), members (one dead part leaves the others alone), roster (its channels), live (config changes while it runs),
dead_letters (what no platform took); pulse and report (how it is, by evidence), health (the same over HTTP); wire,
control and client (the local socket, its two ends), terminal (chats there, as a channel); daemon (systemd, launchd).
"""
