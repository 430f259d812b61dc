"""Small things that every floor may use: files, time, text, processes, connections. One topic a file.

Anyone may import it; it imports nobody but `errors`. Read files first, for everything durable goes through it; the rest
in any order.
"""
