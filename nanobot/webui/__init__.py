"""The page of the gateway and its HTTP endpoints."""
