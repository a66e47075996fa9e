"""Shared fixtures, a browser among them. `rng` is fixed unless `--seed` says otherwise."""

import os
import shutil
from pathlib import Path

import hypothesis
import numpy as np
import pytest

hypothesis.settings.register_profile("quick", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="seed of the rng fixture")
    parser.addoption("--golden-write", action="store_true", help="write the files of tests/golden anew")


@pytest.fixture
def rng(request):
    return np.random.default_rng(request.config.getoption("--seed"))


@pytest.fixture(scope="session")
def browser():
    path = os.environ.get("TACITA_CHROMIUM", "/usr/bin/chromium")
    if shutil.which(path) is None:
        reason = "Chromium is not installed (apt-get install chromium)"
        if os.environ.get("CI") or os.environ.get("TACITA_REQUIRE_CHROMIUM"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """One page opened in the browser, and everything it did on the way."""

    def __init__(self, browser, folder, **options):
        self.file = Path(folder) / "page.html"
        self.page = browser.new_page(**options)
        self.requests, self.dialogs, self.complaints = [], [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dialog)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("popup", lambda page: self.requests.append(page.url))

    def _dialog(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def show(self, document):
        self.requests.clear()
        self.dialogs.clear()
        self.complaints.clear()
        self.file.write_text(document, encoding="utf-8")
        self.page.goto(self.file.as_uri())
        return self.page

    def stayed_quiet(self):
        """True if the page asked for nothing but itself, opened nothing and complained of nothing."""
        asked = [url for url in self.requests if url not in (self.file.as_uri(), "about:srcdoc")]
        return not (asked or self.dialogs or self.complaints)


@pytest.fixture
def visit(browser, tmp_path):
    """Return a function that opens a browser page with the given options."""
    visits = []

    def open_page(**options):
        visits.append(Visit(browser, tmp_path, **options))
        return visits[-1]

    yield open_page
    for opened in visits:
        opened.page.close()
