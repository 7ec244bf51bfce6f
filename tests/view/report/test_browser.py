"""The page in a browser: nothing is asked of the network, the slider works by keyboard, in light and in dark."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.packed import many_packs

pytestmark = pytest.mark.net


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return many_packs(tmp_path_factory.mktemp("browser"))


def imbalance(out: Path, ranks: int) -> str:
    """Of visual tokens, the slowest rank against the mean one, by hand."""
    visual = pq.read_table(out / "index.parquet")["visual_tokens"].to_pylist()
    steps = [visual[at : at + ranks] for at in range(0, len(visual) - ranks + 1, ranks)]
    return f"{np.mean([max(step) / (sum(step) / ranks) for step in steps if any(step)]):.3f}"


def text(browser, name: str) -> str:
    return browser.run(f"document.getElementById('balance-{name}').textContent")


def test_quiet_and_alone(browser, out: Path):
    browser.open(out / "report.html")
    assert browser.requests() == [(out / "report.html").as_uri()]
    assert browser.complaints() == []
    assert browser.run("document.title") == "neatpack: tiny"


def test_the_checks_can_fail(browser, out: Path, tmp_path: Path):
    """A page that asks for something, and one whose policy stops a script in it."""
    html = (out / "report.html").read_text()
    (tmp_path / "asks.html").write_text('<img src="missing.png"><script>nothing()</script>')
    browser.open(tmp_path / "asks.html")
    assert len(browser.requests()) == 2
    assert any("nothing is not defined" in words for words in browser.complaints())
    (tmp_path / "stopped.html").write_text(html.replace("<main>", "<main><script>document.title = 'taken'</script>"))
    browser.open(tmp_path / "stopped.html")
    assert browser.run("document.title") == "neatpack: tiny"
    assert any("Content Security Policy" in words for words in browser.complaints())


def test_the_slider_by_keyboard(browser, out: Path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(out / "report.html")
    assert (text(browser, "ranks"), text(browser, "visual")) == ("8 ranks", imbalance(out, 8))
    slider = browser.driver.find_element(By.ID, "ranks")
    body = browser.driver.find_element(By.TAG_NAME, "body")
    for _ in range(20):  # it can be reached
        body.send_keys(Keys.TAB)
        if browser.driver.switch_to.active_element == slider:
            break
    assert browser.driver.switch_to.active_element == slider
    marks = [browser.run("document.getElementById('ranks-mark').getAttribute('x1')")]
    for keys, ranks in (([Keys.ARROW_LEFT] * 4, 4), ([Keys.ARROW_RIGHT] * 8, 12), ([Keys.HOME], 1)):
        for key in keys:
            slider.send_keys(key)
        words = "1 rank" if ranks == 1 else f"{ranks} ranks"
        assert (text(browser, "ranks"), text(browser, "visual")) == (words, imbalance(out, ranks))
        assert slider.get_attribute("aria-valuetext") == words
        assert text(browser, "steps") == str(len(pq.read_table(out / "index.parquet")) // ranks)
        marks.append(browser.run("document.getElementById('ranks-mark').getAttribute('x1')"))
    assert len(set(marks)) == 4 and marks[-1] == "0"
    assert browser.complaints() == []


def test_folded_parts_open_by_keyboard(browser, out: Path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(out / "report.html")
    summary = browser.driver.find_element(By.CSS_SELECTOR, "#lengths summary")
    assert not browser.run("document.querySelector('#lengths details').open")
    summary.send_keys(Keys.ENTER)
    assert browser.run("document.querySelector('#lengths details').open")


def lightness(browser, what: str) -> float:
    colour = browser.run(f"getComputedStyle(document.body).{what}")
    return float(np.mean([int(part) for part in colour.strip("rgb()").split(",")]))


@pytest.mark.parametrize("width", [400, 1400])
def test_light_and_dark_narrow_and_wide(browser, out: Path, width: int):
    for scheme, is_dark in (("light", False), ("dark", True)):
        browser.open(out / "report.html", width=width, scheme=scheme)
        assert (lightness(browser, "backgroundColor") < 80) == is_dark
        assert (lightness(browser, "color") > 180) == is_dark
        assert browser.run("document.documentElement.scrollWidth") == width, "the page does not scroll sideways"
        assert browser.complaints() == []
