"""Pages in a browser: how they open, walk by keys, explain padding, and what a screen reader is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
from openmps.debug.page.augmented import AugmentedImages
from openmps.debug.page.document import PageExtras, save_document
from openmps.debug.page.mistakes import Mistakes
from openmps.debug.page.view import graph_view
from openmps.training import Network, NetworkShape, optimizer_factory
from oracles import padding as oracle

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
DRIVER, CHROMIUM = shutil.which("chromedriver"), shutil.which("chromium")
pytestmark = pytest.mark.skipif(not (DRIVER and CHROMIUM), reason="no chromium with its chromedriver on this machine")

CPU, FLOAT32 = mps.mtl_device("cpu"), mps.MPSImageFeatureChannelFormat.FLOAT32
HOSTILE = "</script><script>document.title = 'taken'</script>"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1300,850"
).split()
NODES = "[role=tabpanel]:not([hidden]) .node"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network on its way there and back, with curves and a mistake."""
    network = Network.create(NetworkShape(9, 7, 1, 3, "tiny"), seed=0, optimizer=optimizer_factory("adam", 1e-3))
    images = np.random.default_rng(0).integers(0, 256, (2, 9, 7, 1)).astype(np.uint8)
    labels = mps.MPSCNNLossLabels.batch(CPU, np.eye(3, dtype=np.float32)[[0, 2]])
    back = network.training_graph(CPU, FLOAT32, loss_weight=0.5, dropout_seed=0)
    views = [
        graph_view(network.inference_graph(CPU, FLOAT32), "Forward", [images], repeats=1),
        graph_view(back, "Training graph", [images], [labels]),
    ]
    metrics = [{"iteration": 10 * step, "loss": 1 / step, "test_accuracy": 1 - 1 / step} for step in range(1, 6)]
    wrong = Mistakes(images[:1], [2], np.float32([[0.7, 0.2, 0.1]]), ["ant", "bee", HOSTILE], 9, 1)
    path = tmp_path_factory.mktemp("page") / "page.html"
    augmented = AugmentedImages(HOSTILE, images, np.float32(images[None] / 255))
    save_document(path, HOSTILE, views, PageExtras([HOSTILE], metrics, wrong, augmented=augmented))
    return path


def opened(browser: Any, path: Path) -> float:
    """Open a page; gives the seconds until it was drawn. Nothing may go wrong, and nothing be asked for."""
    browser.get_log("performance")
    browser.get(path.as_uri())
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [each["params"] for each in events if each["method"] == "Network.requestWillBeSent"]
    urls = [each["request"]["url"] for each in asked if each.get("documentURL", "").startswith("file:")]
    assert urls == [path.as_uri()]
    return browser.execute_script("return performance.getEntriesByName('drawn')[0].startTime") / 1e3


def chosen(browser: Any) -> str:
    """The layer that the details are of; the focus is on it, and no other one is pressed."""
    pressed = [
        each.get_attribute("data-layer")
        for each in browser.find_elements("css selector", NODES + "[aria-pressed=true]")
    ]
    assert [browser.switch_to.active_element.get_attribute("data-layer")] == pressed
    assert browser.find_element("css selector", "#detail h2").text == pressed[0]
    return pressed[0]


def test_a_resnet50_opens_at_once_and_walks_by_keys(browser: Any, tmp_path: Path) -> None:
    shape = NetworkShape(112, 112, 3, 100, "resnet50")
    network = Network.create(shape, seed=0, optimizer=optimizer_factory("adam", 1e-3))
    images = np.random.default_rng(0).integers(0, 256, (1, 112, 112, 3)).astype(np.uint8)
    path = tmp_path / "resnet50.html"
    assert mps.debug.save_page(path, network.inference_graph(CPU, FLOAT32), [images]) < 5_000_000
    # The better one of two: other work on the machine is not the page's.
    assert min(opened(browser, path) for _ in range(2)) < 2
    assert len(browser.find_elements("css selector", NODES)) == 176
    browser.find_element("css selector", NODES + "[tabindex='0']").send_keys("\ue015")  # down
    assert chosen(browser) == "stem_conv"
    walked = []
    for key in ("\ue015", "\ue015", "\ue015", "\ue013", "\ue010", "\ue011"):  # down, up, end, home
        browser.switch_to.active_element.send_keys(key)
        walked.append(chosen(browser))
    assert walked == ["stem_norm", "relu1", "pool1", "relu1", "softmax", "image"]
    browser.switch_to.active_element.send_keys("\ue007")  # enter
    assert browser.switch_to.active_element.get_attribute("id") == "detail"
    browser.find_element("css selector", ".check input").click()
    assert len(browser.find_elements("css selector", NODES)) == 176 - 118  # those that are fused
    assert browser.get_log("browser") == []


def test_pointing_at_a_pixel_says_what_the_oracle_says(browser: Any, page: Path) -> None:
    opened(browser, page)
    layer = browser.find_element("css selector", NODES + "[data-layer=pool1]")
    assert "9×7" not in layer.get_attribute("aria-label")  # width comes first
    assert "from 7×9×8, to 4×5×8" in layer.get_attribute("aria-label")
    layer.click()
    assert chosen(browser) == "pool1"
    (columns, left), (rows, top) = (
        oracle.framework(each, 2, 2, 1, oracle.SAME, "centered", low=False) for each in (7, 9)
    )
    taps = [oracle.taps(columns, left, 2, 2, 1), oracle.taps(rows, top, 2, 2, 1)]
    result = browser.find_element("css selector", "canvas.pick")
    result.send_keys("\ue014" * (columns - 1) + "\ue015" * (rows - 1))  # right and down, to the last one
    for place, (x, y) in (((columns - 1, rows - 1), (taps[0][-1], taps[1][-1])), ((0, 0), (taps[0][0], taps[1][0]))):
        said = browser.find_element("id", "reads")
        assert f"Pixel ({place[0]}, {place[1]})" in said.text
        assert [json.loads(said.get_attribute(f"data-{axis}")) for axis in "xy"] == [x, y]
        padding = sum(not (u in range(7) and v in range(9)) for u in x for v in y)
        assert said.get_attribute("data-padding") == str(padding)
        assert f"reads 4 pixels, {padding} of them padding" in said.text
        box = result.rect
        webdriver.ActionChains(browser).move_to_element_with_offset(
            result, 2 - int(box["width"] / 2), 2 - int(box["height"] / 2)
        ).perform()
    field = browser.find_element("id", "pixel-x")
    field.clear()
    field.send_keys("99\t")
    assert field.get_attribute("value") == str(columns - 1)


def test_everything_has_a_name_and_a_place_in_the_focus_order(browser: Any, page: Path) -> None:
    opened(browser, page)
    assert browser.title == f"{HOSTILE} – openmps"
    assert browser.find_element("id", "title").text == HOSTILE
    names = [tab.text for tab in browser.find_elements("css selector", "[role=tab]")]
    assert names == [
        "Forward",
        "Forward as a table",
        "Training graph",
        "Training graph as a table",
        "Training",
        "Augmentation",
        "Mistakes",
    ]
    unnamed = """return [...document.querySelectorAll('button, input, select, canvas, svg, [role]')].filter((each) => {
        const shown = each.getClientRects().length && !each.closest('[aria-hidden=true]');
        const label = each.ariaLabel || each.getAttribute('aria-labelledby') || each.labels?.length;
        return shown && !label && !each.textContent.trim() && each.getAttribute('role') !== 'status';
    }).map((each) => each.outerHTML.slice(0, 120))"""
    tab = browser.find_element("id", "tab-graph-0")
    tab.send_keys("")
    found = []
    for name in names:
        active = browser.switch_to.active_element
        assert (active.text, active.get_attribute("aria-selected")) == (name, "true")
        panel = browser.find_element("id", active.get_attribute("aria-controls"))
        assert (panel.is_displayed(), panel.get_attribute("role")) == (True, "tabpanel")
        nodes = panel.find_elements("css selector", ".node")
        if nodes:
            assert [node.get_attribute("tabindex") for node in nodes].count("0") == 1
            nodes[2].click()
            active.click()
        found.append(browser.execute_script(unnamed))
        active.send_keys("\ue014")  # right
    assert found == [[]] * len(names)
    assert browser.switch_to.active_element.text == names[0]
    browser.find_element("id", "tab-table-0").click()
    rows = browser.find_elements("css selector", "#panel-table-0 tbody tr")
    assert [each.text for each in rows[1].find_elements("css selector", "th, td")][:5] == [
        "first_conv", "MPSCNNConvolutionNode", "image", "7×9×1", "7×9×8"
    ]  # fmt: skip
    rows[1].find_element("css selector", "button").click()
    assert browser.find_element("css selector", "#detail h2").text == "first_conv"
    sections = {each.text for each in browser.find_elements("css selector", "#detail h3")}
    assert {"Padding", "weights", "activations"} <= sections
    assert browser.get_log("browser") == []


def test_it_is_dark_where_the_system_is_and_where_it_is_asked_to_be(browser: Any, page: Path) -> None:
    def light(scheme: str) -> int:
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        opened(browser, page)
        return ground()

    def ground() -> int:
        script = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
        return sum(browser.execute_script(script))

    assert light("dark") < 150 < 600 < light("light")
    switch = browser.find_element("id", "theme")
    assert switch.get_attribute("aria-pressed") == "false"
    switch.click()
    assert switch.get_attribute("aria-pressed") == "true"
    assert ground() < 150
    switch.click()
    assert ground() > 600
