"""The version of this package, for the user agent of AWS calls. It is known even without an installation."""

from typing import Final

VERSION: Final = "0.1.0"

USER_AGENT: Final = f"sqs-lease/{VERSION}"
"""The addition to the user agent of every client: AWS support and CloudTrail see what made a call."""
