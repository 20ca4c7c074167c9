"""Real Chromium, for the pages that this project adds to the interfaces of others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

CHROMIUM_VARIABLE = "CHROMIUM"
"""The environment variable that names the browser's program, where it is not on the path."""

LIMIT_MILLISECONDS = 120_000
"""How long to wait for what a page is to show."""


def chromium() -> str:
    """The program of the browser.

    Raises:
        pytest.fail.Exception: There is none: these tests are not left out in silence.
    """
    for name in (os.environ.get(CHROMIUM_VARIABLE, ""), "chromium", "chromium-browser", "google-chrome"):
        if name and (found := shutil.which(name)):
            return found
    pytest.fail(f"no Chromium here: run `apt install chromium`, or name its program in {CHROMIUM_VARIABLE}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    # As root, as in containers, Chromium has no sandbox of its own; it opens nothing but pages of these tests.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        # Only a hang takes so long: on a busy machine the first page takes ten seconds.
        expect.set_options(timeout=LIMIT_MILLISECONDS)
        running = playwright.chromium.launch(executable_path=chromium(), args=options)
        yield running
        running.close()
