"""File access: which paths tools may read and write, and opening exactly the file that was checked."""
