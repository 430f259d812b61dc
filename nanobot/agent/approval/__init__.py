"""Approvals: which calls the owner must allow, because of what they access or because untrusted content is in play;
how the question is asked, who may answer it, and what the answer allows.
"""
