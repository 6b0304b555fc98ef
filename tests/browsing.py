"""A real browser for tests: open a page, and learn what came of it."""

import json
import re
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--enable-logging=stderr",
    "--v=0",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--allow-file-access-from-files",  # a page looks into its frames
)


@dataclass(frozen=True)
class Visit:
    """Document, console and requests of an opened page."""

    dom: str
    console: list
    requests: list

    @property
    def title(self):
        return unescape(re.search("<title>(.*?)</title>", self.dom, re.DOTALL)[1])


@dataclass(frozen=True)
class Browser:
    """A browser without a network, and a folder for what it writes."""

    program: str
    folder: Path

    def open(self, page, *flags, seconds=120):
        """Open a page, and wait until its scripts have nothing more to do."""
        log = self.folder / "net.json"
        done = subprocess.run(
            [
                self.program,
                *QUIET,
                *flags,
                f"--user-data-dir={self.folder / 'profile'}",
                f"--log-net-log={log}",
                "--dump-dom",
                page.as_uri(),
            ],
            capture_output=True,
            encoding="utf-8",
            check=True,
            timeout=seconds,
        )
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return Visit(done.stdout, said, requests_in(log))


def requests_in(log):
    """Return what a page asked for; the browser itself is "not an origin"."""
    events = json.loads(log.read_text(encoding="utf-8"))["events"]
    parameters = [event.get("params", {}) for event in events]
    return [
        one["url"]
        for one in parameters
        if "url" in one and one.get("initiator", "not an origin") != "not an origin"
    ]
