"""The version of this package: what calls to AWS and Airflow's list of providers say."""

from typing import Final

VERSION: Final = "0.1.0"
