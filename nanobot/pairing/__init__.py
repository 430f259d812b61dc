"""Pairing: an unknown sender asks with a code, the owner approves. `store` keeps who may write and who is owner.

`senders` matches ids in any spelling against lists; `commands` answers `/pairing` in a chat.
"""
