"""HTTP connections, and the egress policy (SSRF protection) for every request of the agent.

`egress` decides which addresses a URL may reach; `fetch` connects to exactly those and gets a bounded response.
"""
