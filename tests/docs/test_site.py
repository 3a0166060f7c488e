"""The built site: complete, from nowhere else, and searched in a real browser without a server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as ``make docs`` does: every warning is an error."""
    place = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "docs" / "mkdocs.yml"), "-d", str(place)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    return place


def test_nothing_from_another_host(site: Path) -> None:
    """No page loads a script, a style, a font or a picture from elsewhere."""
    loaded = re.compile(
        r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=\"?(https?:)?//(?!www\.w3\.org)[^\s\">]+", re.IGNORECASE
    )
    for page in site.rglob("*.html"):
        found = [match[0] for match in loaded.finditer(page.read_text()) if 'rel="canonical"' not in match[0]]
        assert not found, f"{page.relative_to(site)}: {found}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?https?:", style.read_text()), style.relative_to(site)


def test_generated_parts_are_filled(site: Path) -> None:
    """Commands, families, figures and the decision log."""
    for page, text in {
        "reference/cli.html": "fastomp check-constraint",
        "constraints/index.html": "judgements",
        "benchmarks.html": "bench first-answer",
        "design.html": "A round is a yield",
        "reference/python.html": "cross_validate",
    }.items():
        assert text in (site / page).read_text(), page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start a headless Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("no chromium and chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"):
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    running = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield running
    running.quit()


def test_search_without_a_server(site: Path, browser: Any) -> None:
    """Pages opened from the folder find each other."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get((site / "index.html").as_uri())
    browser.execute_script("document.querySelector('.md-search__input').focus()")
    browser.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys("knapsack")
    WebDriverWait(browser, 60).until(
        lambda _: any(
            "knapsack" in link.get_attribute("href") for link in browser.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
        )
    )


@pytest.mark.parametrize("width", [1280, 400])
def test_no_page_is_wider_than_the_window(site: Path, browser: Any, width: int) -> None:
    """At the width of a desktop and of a phone."""
    browser.set_window_size(width, 900)
    for page in sorted(site.rglob("*.html")):
        browser.get(page.as_uri())
        wide, shown = browser.execute_script("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide <= shown + 1, f"{page.relative_to(site)}: {wide} of {shown} pixels"
