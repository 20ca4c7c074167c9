"""Looks for a regular expression in texts, in a process of its own.

``re`` lets no other thread of its process run while it looks, and some patterns take for ever: one like ``(a+)+$``
takes twice as long for each further letter. In a triggerer that would stop every trigger, and no lease would be
extended.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from sqs_lease.daemon_threads import DaemonThreads

SEARCH_SECONDS: Final = 20.0
"""How long a search may take: thousands of texts take a fraction of a second, and a busy machine some seconds more."""

_PROGRAM: Final = """
import faulthandler, json, re, sys
faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
pattern, texts = json.load(sys.stdin)
search = re.compile(pattern).search
json.dump([search(text) is not None for text in texts], sys.stdout)
"""


class SearchError(RuntimeError):
    """The search took too long, or could not be made."""


async def found_in(pattern: str, texts: Sequence[str]) -> Sequence[bool]:
    """Tell for each text whether a regular expression is found in it.

    Args:
        pattern: The expression.
        texts: The texts.

    Raises:
        SearchError: It took too long, or no process could be started.
    """
    if not texts:
        return ()
    return await DaemonThreads(1, "sqs-lease search").run(_search, pattern, texts)


def _search(pattern: str, texts: Sequence[str]) -> Sequence[bool]:
    if not sys.executable:
        # Python does not find out in a program that embeds it.
        raise SearchError(
            f"no process can be started that looks for {pattern!r}, because this one does not know its own interpreter "
            "(sys.executable is empty): start it by the path of its Python interpreter, or leave the expression out"
        )
    # It ends by itself, too, if this process is gone by then: nobody else would end a search that takes for ever.
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(2 * SEARCH_SECONDS)]
    given = json.dumps([pattern, list(texts)])
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, and a program without a user's words in it
            command, input=given, capture_output=True, text=True, timeout=SEARCH_SECONDS, check=True
        )
    except subprocess.TimeoutExpired:
        raise SearchError(
            f"looking for the regular expression {pattern!r} in {len(texts)} texts took longer than "
            f"{SEARCH_SECONDS:g} s: write it without a repetition within a repetition, such as (a+)+"
        ) from None
    except (OSError, subprocess.CalledProcessError) as error:
        # Without what the process said: that may quote the texts.
        raise SearchError(f"a process that looks for {pattern!r} failed: {type(error).__name__}") from None
    found: Sequence[bool] = json.loads(done.stdout)
    return found
