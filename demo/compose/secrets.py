"""The passwords and keys of a stack: made once, kept in a volume, in no file of the checkout."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

DATABASE_USER = "sqs_lease"
DATABASE_HOST = "postgres"
"""The service of compose.yaml that is the database server."""

AIRFLOW_USER = "admin"


def make_secrets(directory: Path) -> list[str]:
    """Make the files that are missing; those that are there are kept, because databases know their content.

    Args:
        directory: Where they are; only its owner may read them.

    Returns:
        The names of the files that were made.
    """
    pgpass, password = directory / "pgpass", directory / "postgres-password"
    # The server knows the password since it made its data: whichever of the two files is left says which it is.
    if pgpass.exists():
        database_password = pgpass.read_text().strip().rpartition(":")[2]
    else:
        database_password = password.read_text() if password.exists() else secrets.token_urlsafe(24)
    contents: Mapping[str, Callable[[], str]] = {
        # The format of libpq, which psycopg and asyncpg read, too: host:port:database:user:password
        pgpass.name: lambda: f"{DATABASE_HOST}:5432:*:{DATABASE_USER}:{database_password}\n",
        password.name: lambda: database_password,
        "airflow-fernet-key": lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "airflow-jwt-secret": lambda: secrets.token_hex(64),
        "airflow-api-secret-key": lambda: secrets.token_hex(32),
        "airflow-passwords.json": lambda: json.dumps({AIRFLOW_USER: secrets.token_urlsafe(12)}) + "\n",
    }
    missing = [name for name in contents if not (directory / name).exists()]
    for name in missing:
        _write(directory / name, contents[name]())
    return missing


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.touch(mode=0o600)
    unfinished.write_text(text)
    unfinished.replace(path)
