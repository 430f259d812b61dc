"""The tables of the index."""

import sqlite3

VERSION = 2
"""Of the tables and of how text becomes words: an index of another one is made anew."""
_SCHEMA = """
CREATE TABLE files (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, archived INTEGER NOT NULL,
    folder TEXT NOT NULL, key TEXT NOT NULL, stamp TEXT NOT NULL, read_to INTEGER NOT NULL,
    head INTEGER NOT NULL, tail INTEGER NOT NULL, outside INTEGER NOT NULL, senders TEXT NOT NULL,
    scopes TEXT NOT NULL);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, at INTEGER NOT NULL, size INTEGER NOT NULL,
    nth INTEGER NOT NULL, time REAL NOT NULL, role TEXT NOT NULL);
CREATE INDEX rows_of_file ON rows (file);
CREATE VIRTUAL TABLE words USING fts5 (text, place, content = '', tokenize = 'ascii');
"""


def make_tables(db: sqlite3.Connection) -> None:
    """Empty tables. In one transaction: another process finds the old ones or the new ones."""
    db.execute("PRAGMA secure_delete = ON")
    db.execute("BEGIN IMMEDIATE")
    try:
        for kind, name in (("TABLE", "words"), ("TABLE", "rows"), ("TABLE", "files")):
            db.execute(f"DROP {kind} IF EXISTS {name}")
        db.execute("DELETE FROM sqlite_sequence") if _has_sequence(db) else None
        for statement in filter(str.strip, _SCHEMA.split(";")):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _has_sequence(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone() is not None
