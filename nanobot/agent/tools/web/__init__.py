"""The web tools: `web_fetch` reads pages, `web_search` asks a search engine. All requests go through the egress policy,
and all content is untrusted.
"""
