"""HTTP connections, and the egress policy (SSRF protection) for every request of the agent.

`egress` decides which addresses a URL may reach, `transport` connects to exactly those, `fetch` gets a bounded
response.
"""
