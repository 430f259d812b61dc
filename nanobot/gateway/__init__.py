"""The gateway: the process that runs channels, jobs and heartbeat, supervises them, and reports its health.

`service` starts and stops it; `control` is its local socket, `health` its HTTP endpoint, `daemon` installs it as a
service.
"""
