"""The web: pages fetched and read, and searched for. All of it over the checked transport, all of it other people's.

Read policy, fetch, pages; then search, engines.
"""
