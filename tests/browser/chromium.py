"""Debian's Chromium, driven by playwright."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.servers import Unavailable
from tests.servers.stores import TEST_EXTRA

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# It asks nobody outside of this machine for anything, and needs neither a display nor a sandbox of the kernel.
_SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window, whose profile is gone afterwards."""
    found = shutil.which("chromium")
    if found is None:
        raise Unavailable("no Chromium was found", "apt-get install -y chromium")
    if importlib.util.find_spec("playwright") is None:
        raise Unavailable("playwright is not installed", TEST_EXTRA)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*_SWITCHES])
        try:
            yield browser
        finally:
            browser.close()
