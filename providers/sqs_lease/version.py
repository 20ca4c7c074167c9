"""The version of this package, for the user agent of AWS calls. It is known even without an installation."""

from typing import Final

VERSION: Final = "0.1.0"
