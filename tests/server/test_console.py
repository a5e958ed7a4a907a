"""The page at `/` in a real browser, headless: what it shows of an answer, and its figures against `/metrics`."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from nextfit.server.config import HttpConfig
from nextfit.server.load import loader
from nextfit.server.service import Service
from tests.server.scripted import running
from tests.server.test_conversation import ANSWERS, TOOLS
from tests.support.scripted_server import load

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PICTURES = os.environ.get("NEXTFIT_PICTURES")  # where to put those of the docs
KEY = "a key"
ROWS = """return [...document.querySelectorAll('.owner')].map(
    e => [e.dataset.owner, e.querySelector('.bytes').textContent])"""
HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Two requests at once, twenty steps a second; every third draft is wrong."""
    service = Service(load(ANSWERS, tokens_per_step=4, context=4096, sequences=2, pause=0.05, wrong_at=3))
    with running(service, HttpConfig(keys=(KEY,))) as url:
        yield url


@pytest.fixture(scope="module")
def browser(url: str) -> Iterator[webdriver.Chrome]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,800"):
        options.add_argument(option)
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        driver.get(url.replace("http://", f"http://me:{b64encode(b'x').decode()}@"))
        assert "turns" not in driver.page_source  # another key
        driver.get(url.replace("http://", "http://me:a%20key@"))
        driver.get(url)
        yield driver
    finally:
        driver.quit()


def until(check: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.1)


def text(browser: webdriver.Chrome, selector: str) -> str:
    """What is there, seen or folded, of the last of them."""
    found = browser.find_elements(By.CSS_SELECTOR, selector)
    return found[-1].get_property("textContent") if found else ""  # type: ignore[return-value]


def say(browser: webdriver.Chrome, words: str) -> None:
    browser.find_element(By.ID, "text").send_keys(words, Keys.ENTER)
    until(lambda: bool(browser.find_element(By.ID, "send").is_enabled()) and text(browser, ".user") == words)


def picture(browser: webdriver.Chrome, name: str) -> None:
    if PICTURES:
        browser.save_screenshot(str(Path(PICTURES) / name))


def test_a_chat_a_thought_and_calls(browser: webdriver.Chrome) -> None:
    assert "NextFit" in browser.title
    until(lambda: text(browser, "#model") == "scripted")
    say(browser, "marks")
    assert text(browser, ".content") == "Use <tool_call> with care."
    thought = browser.find_element(By.CSS_SELECTOR, "details.thought")
    assert thought.get_property("open") is False
    assert not thought.find_element(By.TAG_NAME, "div").is_displayed()
    thought.find_element(By.TAG_NAME, "summary").click()
    assert thought.find_element(By.TAG_NAME, "div").text == "The marker <tool_call> opens a call."
    tools = browser.find_element(By.ID, "tools")
    browser.execute_script("arguments[0].value = arguments[1]", tools, json.dumps(TOOLS))
    say(browser, "both")
    calls = [e.text for e in browser.find_elements(By.CSS_SELECTOR, ".call")]
    assert len(calls) == 2 and calls[1] == "now {}"
    assert json.loads(calls[0].removeprefix("write_file ")) == {"path": 'a}b"c\\d.txt', "n": 3}
    picture(browser, "console-call.png")
    browser.execute_script("arguments[0].value = '{'", tools)
    browser.find_element(By.ID, "text").send_keys("x", Keys.ENTER)
    until(lambda: "Tools:" in text(browser, ".turn.error"))
    browser.execute_script("arguments[0].value = ''", tools)
    browser.find_element(By.ID, "clear").click()
    assert not browser.find_elements(By.CSS_SELECTOR, ".turn")


def test_an_answer_is_stopped(browser: webdriver.Chrome, url: str) -> None:
    browser.find_element(By.ID, "text").clear()
    browser.find_element(By.ID, "text").send_keys("forever", Keys.ENTER)
    until(lambda: "round" in text(browser, ".thought div"))
    browser.find_element(By.ID, "stop").click()
    until(lambda: bool(browser.find_element(By.ID, "send").is_enabled()))
    until(lambda: figures(url)["num_requests_running"] == 0)


def figures(url: str) -> dict[Any, float]:
    """Values by name, or by name and owner; read by the library that Prometheus clients read with."""
    found: dict[Any, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", headers=HEADERS).text):
        for sample in family.samples:
            name = sample.name.removeprefix("nextfit:")
            owner = sample.labels.get("owner")
            found[name if owner is None else (name, owner)] = sample.value
    return found


def shown(value: float) -> str:
    """Bytes as the page writes them."""
    for unit, digits in (("B", 0), ("KiB", 1), ("MiB", 1)):
        if value < 1024:
            return f"{value:.{digits}f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


def agrees(browser: webdriver.Chrome, url: str) -> bool:
    """Every figure but the speeds, at a moment when nothing changes between the two readings."""
    m = figures(url)
    wanted = {
        "queue": f"{m['num_requests_running']:.0f}, {m['num_requests_waiting']:.0f}",
        "acceptance": percent(
            m["spec_decode_num_accepted_tokens_total"], m["spec_decode_num_draft_tokens_total"]
        ),
        "cached": percent(m["prefix_cache_hits_total"], m["prefix_cache_queries_total"]),
        "pages": f"{m['pages_used']:.0f}, {m['pages_cached']:.0f} of {m['pages_total']:.0f}",
    }
    memory = {}
    for key in m:
        if key[0] == "memory_planned_bytes":
            peak = m.get(("memory_peak_bytes", key[1]))
            memory[key[1]] = shown(m[key]) if peak is None else f"{shown(peak)} of {shown(m[key])}"
    rows = browser.execute_script(ROWS)
    return dict(rows) == memory and all(text(browser, f"#{id}") == value for id, value in wanted.items())


def test_figures_follow_the_load(browser: webdriver.Chrome, url: str) -> None:
    until(lambda: agrees(browser, url))
    idle = text(browser, "#pages")
    body = {"messages": [{"role": "user", "content": "forever"}], "max_tokens": 2000, "ignore_eos": True}
    clients = [threading.Thread(target=_ask, args=(url, body)) for _ in range(5)]
    for client in clients:
        client.start()
    until(lambda: text(browser, "#queue") == "2, 3")
    before, start = figures(url)["generation_tokens_total"], time.monotonic()
    time.sleep(3)
    speed = float(text(browser, "#speed"))
    counted = (figures(url)["generation_tokens_total"] - before) / (time.monotonic() - start)
    assert 0.3 * counted < speed < 3 * counted, (speed, counted)
    assert text(browser, "#pages") != idle
    for client in clients:
        client.join()
    until(lambda: text(browser, "#queue") == "0, 0" and agrees(browser, url))


def test_memory_of_the_bundled_model(browser: webdriver.Chrome) -> None:
    """Every owner, before an answer and after it, with drafts and a hit in the prefix cache."""
    with running(
        Service(loader(None, (), {"context": 4096, "sequences": 2})), HttpConfig(keys=(KEY,))
    ) as url:
        browser.get(url.replace("http://", "http://me:a%20key@"))
        browser.get(url)
        until(lambda: agrees(browser, url))
        before = browser.execute_script(ROWS)
        assert len(before) > 5
        browser.find_element(By.ID, "limit").send_keys("60")
        for words in ("Hello, who are you?", "And now?"):
            say(browser, words)
        assert not browser.find_elements(By.CSS_SELECTOR, ".error")
        until(lambda: agrees(browser, url))
        assert browser.execute_script(ROWS) != before
        picture(browser, "console.png")


def _ask(url: str, body: Any) -> None:
    """A client that leaves after eight seconds, whether it is served or waits."""
    end = time.monotonic() + 8
    stream = {"json": body | {"stream": True}, "headers": HEADERS, "timeout": 8}
    with suppress(httpx.ReadTimeout), httpx.stream("POST", f"{url}/v1/chat/completions", **stream) as answer:
        for _ in answer.iter_lines():
            if time.monotonic() > end:
                return
