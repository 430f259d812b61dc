"""The gateway: the process that runs channels, jobs and heartbeat, supervises them, and reports its health.

`service` starts and stops it; `control` is its local socket, `http` its HTTP server, `daemon` installs it as a
service.
"""
