"""Python runs this at the start of each process that has this directory in ``PYTHONPATH``."""

from tests.rounds.recorder import install

install()
