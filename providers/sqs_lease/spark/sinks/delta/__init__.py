"""A Delta table, written without the JVM: rows are staged as its files, and a commit takes them in."""
