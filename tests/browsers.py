"""Pages in a real browser: what it draws, what it complains about, and what it asks the network for."""

import json
import shutil
import subprocess

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian's package chromium)")


def browse(page, folder):
    """What a browser makes of a page: its elements after all scripts, its complaints, and what it asked the net for."""
    log = folder / "net.json"
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder / 'profile'}",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser's own services are not to be reached either
            "--enable-logging=stderr",
            f"--log-net-log={log}",
            "--window-size=1400,4000",
            "--virtual-time-budget=10000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    requests = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    # What the browser asks for by itself has no initiator.
    asked = {one["url"] for one in requests if one.get("initiator") not in ("not an origin", None)}
    return done.stdout, complaints, {url for url in asked if not url.startswith(("file:", "data:", "blob:"))}
