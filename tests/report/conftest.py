"""Labels with a given text in every place a user can write to, and a real browser to look at them."""

import os
import shutil
from pathlib import Path

import pytest

from tacita.guarantee import Guarantee
from tacita.report.label import Check, GroupRow, Label, Readings

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]


def guarantee(text, **changes):
    fields = {
        "kind": "worst_case",
        "epsilon": 1.0162,
        "delta": 1e-5,
        "method": text,
        "unit": text,
        "sampling": text,
        "estimator": text,
        "composition": text,
        "delta_split": ((text, 5e-7),),
        "mechanism": ((text, 1.0),),
        "assumptions": (f"{text}", f"{text}{text}"),
        "publishable": True,
    }
    return Guarantee(**(fields | changes))


def readings(text, scale=1.0):
    return Readings(
        typical=(
            guarantee(text, kind="bayesian", epsilon=0.85 * scale, scope="reading", notion="weak", publishable=False),
            guarantee(text, kind="bayesian", epsilon=0.4 * scale, model="model-based", publishable=False),
        ),
        panels=text,
        percentiles=tuple(
            (float(p), scale * (0.1 + 0.9 * (p / 100) ** 2)) for p in (1, 10, 25, 50, 75, 90, 95, 99, 100)
        ),
        curve=tuple((step, scale * 0.85 * (step / 2000) ** 0.4) for step in range(1, 2001, 7)),
        groups=tuple(
            GroupRow(column=text, value=text, records=100, median=0.2 * scale, p90=0.6 * scale, largest=scale)
            for _ in range(3)
        ),
        metrics=((text, text),),
        checks=tuple(Check(text=text, state=state) for state in ("holds", "open", "warning")),
        certificate=text,
        facts=((text, text), (text, text)),
    )


def full_label(text, scale=1.0):
    return Label(
        title=text,
        purpose=text,
        worst=guarantee(text),
        comparisons=(guarantee(text, epsilon=1.3), guarantee(text, kind="bayesian", epsilon=0.9)),
        curve=tuple((step, 1.0162 * (step / 2000) ** 0.5) for step in range(1, 2001, 7)),
        mechanism=((text, text), (text, text)),
        declared=(text, text),
        checks=tuple(Check(text=text, state=state) for state in ("holds", "open", "warning")),
        not_hardened=(text, text),
        included=((text, text),),
        readings=readings(text, scale),
    )


@pytest.fixture
def make_label():
    """Return a function from a text (and a scale of the readings) to a label with that text everywhere."""
    return full_label


@pytest.fixture
def make_readings():
    return readings


@pytest.fixture
def make_guarantee():
    return guarantee


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
