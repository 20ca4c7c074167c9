"""A batch on its way from one process to another: as a value, as files, and while nobody has taken it yet."""
