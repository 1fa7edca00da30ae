"""Writes docs/assets/view.png: a page of openmps view in a browser. Needs selenium, chromium and its chromedriver.

python tools/view_picture.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from selenium import webdriver

from openmps.cli import main

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "assets" / "view.png"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,940"
).split()
LAYER = "[role=tabpanel]:not([hidden]) .node[data-layer=first_conv]"


def picture(page: Path, data: str) -> bytes:
    """The page with its first convolution chosen."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={data}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        browser.get(page.as_uri())
        browser.find_element("css selector", LAYER).click()
        browser.execute_script("document.getElementById('detail').scrollTop = 250; document.activeElement.blur()")
        time.sleep(0.5)
        return browser.get_screenshot_as_png()
    finally:
        browser.quit()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main(["train", "--network", "tiny", "--epochs", "8", "--run", "runs/digits", "--quiet"])
        main(["view", "digits"])
        PICTURE.write_bytes(picture(Path("digits.html").resolve(), str(Path(folder, "browser"))))
        print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")
