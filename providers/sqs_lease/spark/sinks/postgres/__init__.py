"""A PostgreSQL table: rows and the ids of their messages are one transaction."""
