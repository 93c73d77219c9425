"""Debian's Chromium, driven by playwright, for a look at Dagster's UI."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.servers import Unavailable

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
    for package, extra in (("playwright", "test"), ("dagster_webserver", "ui")):
        if importlib.util.find_spec(package) is None:
            raise Unavailable(f"{package} is not installed", f"python -m pip install -e '.[{extra}]'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*_SWITCHES])
        try:
            yield browser
        finally:
            browser.close()
