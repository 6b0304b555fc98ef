"""A real browser for tests: open a page, and learn what came of it."""

from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Visit:
    """An opened page, what it said, and what was asked for."""

    page: object
    console: list
    asked: list

    @property
    def title(self):
        return self.page.title()

    @property
    def requests(self):
        """URLs that the page asked for besides itself, and its policy let through."""
        return [
            one.url
            for one in self.asked
            if one.failure != "csp"
            and not (one.is_navigation_request() and one.frame == self.page.main_frame)
        ]


@contextmanager
def opened(program, address, *, width=1280, height=720, colors="light"):
    """Open a page in a browser without a network, and wait until it is loaded."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=[
                "--host-resolver-rules=MAP * ~NOTFOUND",
                "--allow-file-access-from-files",  # a page looks into its frames
            ],
        )
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme=colors
        )
        page.set_default_timeout(600_000)  # milliseconds: CI is busy
        visit = Visit(page, [], [])

        def asked(request):
            visit.asked.append(request)

        page.on("console", lambda message: visit.console.append(message.text))
        page.on("pageerror", lambda error: visit.console.append(str(error)))
        page.on("request", asked)
        # A busy machine may ask for nothing for a while before its frames are parsed.
        page.goto(address.as_uri(), wait_until="load")
        page.wait_for_load_state("networkidle")
        yield visit
        browser.close()
