"""Solaris: runs the teacher offline and leaves its records in the log and in Valkey."""
