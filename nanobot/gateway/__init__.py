"""The gateway: what lives for days. It holds everything below it together, and tells how it is.

Only the command line may import it. Read service (what lives in it), members (how one dead part leaves the others
alone), roster (its channels), live (config changes while it runs), dead_letters (what no platform took), then its
faces: health (HTTP), control and client (the local socket), daemon (systemd and launchd).
"""
