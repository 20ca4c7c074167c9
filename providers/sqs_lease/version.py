"""The version of this package, which calls to AWS name. It is known also where nothing was installed."""

from typing import Final

VERSION: Final = "0.1.0"
