"""Airflow in the tests' own process: a home of its own, no database, and a Fernet key.

Airflow reads its configuration when it is imported: a `conftest.py` imports this module before anything else.
"""

from __future__ import annotations

import base64
import os
import tempfile

_HOME = tempfile.TemporaryDirectory(prefix="sqs-lease-airflow-")

os.environ["AIRFLOW_HOME"] = _HOME.name
os.environ["AIRFLOW__CORE__FERNET_KEY"] = base64.urlsafe_b64encode(os.urandom(32)).decode()
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
