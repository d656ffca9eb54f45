"""Widgets in a real JupyterLab, pages in a real browser: they appear, and they move.

Needs Chromium: ``apt install chromium`` or ``playwright install chromium``.
"""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from xpress_lab.benchmarks.recording import Lane
from xpress_lab.book.site import build
from xpress_lab.notebooks import FOLDER, METADATA, find
from xpress_lab.presets import data_folder

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE = 300_000  # milliseconds until a cell has run
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

LOAD = """
from xpress_lab import load_lab
from xpress_lab.notebooks import introduce
introduce()
lab = load_lab("pocket", device="cpu")
words = lab.target.tokenizer.decode
question = "Ben lives in Oslo and works as a baker. Where does Ben live?"
texts = {"one": lab.generate(question, "xpress")}
"""
WIDGETS = {
    "stepper": """
from xpress_lab.viz.widgets import JacobiStepper
def draft(prompt, temperature, seed):
    return lab.generate(prompt, "xpress", temperature=temperature, seed=seed)
JacobiStepper(draft, [question], words).show()
""",
    "race": """
from xpress_lab.benchmarks.recording import record
from xpress_lab.viz.race_player import RacePlayer
RacePlayer({"one": record(lab, question, repeats=1)}).show()
""",
    "inspector": """
from xpress_lab.viz.block_inspector import BlockInspector
BlockInspector(lab.target, lab.method("xpress"), texts, words).show()
""",
    "explorer": """
from xpress_lab.benchmarks.shipped import shipped_rows
from xpress_lab.viz.tau_explorer import TauExplorer
TauExplorer(shipped_rows()).show()
""",
}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        own = Path(driver.chromium.executable_path)
        if not found and not own.is_file():
            pytest.skip("no Chromium here: apt install chromium")
        path = str(own) if own.is_file() else found
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


# JupyterLab ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["Light", "Dark"])
def lab_page(request, browser, tmp_path_factory):
    """A notebook with the four widgets, all cells run."""
    folder = tmp_path_factory.mktemp(request.param.lower())
    cells = [new_code_cell(source.strip()) for source in (LOAD, *WIDGETS.values())]
    notebook = new_notebook(cells=cells, metadata=METADATA)
    nbformat.write(notebook, folder / "widgets.ipynb")
    server, address = serve(folder, f"JupyterLab {request.param}")
    context = browser.new_context(viewport={"width": 1400, "height": 5200})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    try:
        page.goto(address)
        page.locator(".jp-Notebook").wait_for()
        run_all(page)
        pictures = page.locator(".jp-OutputArea-output .widget-image")
        pictures.nth(len(WIDGETS) - 1).wait_for()
        yield page
        page.screenshot(path=str(folder / "after.png"))
    finally:
        context.close()
        server.terminate()
        server.wait(timeout=60)


def run_all(page) -> None:
    """Run every cell; asked again if JupyterLab was not ready to listen."""
    for _ in range(10):
        page.locator(".jp-Notebook .jp-CodeCell").first.click()
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.locator(".lm-Menu-item[data-command='runmenu:run-all']").click()
        begun = page.locator(".jp-InputPrompt", has_text=re.compile(r"\[[*\d]")).first
        try:
            begun.wait_for(timeout=30_000)
        except playwright.TimeoutError:
            page.keyboard.press("Escape")
        else:
            return
    raise AssertionError("JupyterLab did not run the cells")


def serve(folder: Path, theme: str) -> tuple[subprocess.Popen, str]:
    """JupyterLab on a free port, with settings of its own; and where it is."""
    themes = folder / "settings" / "@jupyterlab" / "apputils-extension"
    themes.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}  # ask nobody anything
    chosen = {"themes": {"theme": theme}, "notification": quiet}
    for name, settings in chosen.items():
        path = themes / f"{name}.jupyterlab-settings"
        path.write_text(json.dumps(settings), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(8)
    own = {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings")}
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        own[f"JUPYTER_{kind}_DIR"] = str(folder / kind.lower())
    own["JUPYTERLAB_WORKSPACES_DIR"] = str(folder / "workspaces")
    root = Path(__file__).parents[1]
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    own["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", "--ServerApp.port_retries=0", "--ip=127.0.0.1"]
    command += [f"--IdentityProvider.token={token}", f"--notebook-dir={folder}"]
    environment = {**os.environ, **own}
    environment.pop("MPLBACKEND", None)
    log = (folder / "server.log").open("w", encoding="utf-8")
    server = subprocess.Popen(
        command, env=environment, stdout=log, stderr=log, cwd=folder
    )
    base = f"http://127.0.0.1:{port}"
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{base}/api?token={token}", timeout=5)
            return server, f"{base}/lab/tree/widgets.ipynb?token={token}&reset"
        except OSError:
            time.sleep(0.5)
    server.terminate()
    raise AssertionError((folder / "server.log").read_text(encoding="utf-8"))


def picture_of(page, number: int) -> str:
    """The bytes that the widget's picture shows, as text."""
    image = page.locator(".jp-OutputArea-output .widget-image").nth(number)
    return image.evaluate(
        """async (img) => {
            await img.decode();
            const bytes = new Uint8Array(await (await fetch(img.src)).arrayBuffer());
            return `${img.naturalWidth} ${Array.from(bytes).join(",")}`;
        }"""
    )


@pytest.mark.parametrize("name", list(WIDGETS))
def test_a_widget_appears_and_its_slider_changes_the_picture(lab_page, name):
    number = list(WIDGETS).index(name)
    before = picture_of(lab_page, number)
    assert int(before.split()[0]) > 300
    output = lab_page.locator(".jp-OutputArea-output:has(.widget-image)").nth(number)
    assert output.locator(".widget-html-content").inner_text().endswith(".")
    handle = output.locator(".noUi-handle").first
    handle.focus()
    value = handle.get_attribute("aria-valuenow")
    at_end = float(value) >= float(handle.get_attribute("aria-valuemax"))
    handle.press("ArrowLeft" if at_end else "ArrowRight")
    assert handle.get_attribute("aria-valuenow") != value
    deadline = time.monotonic() + 120
    while picture_of(lab_page, number) == before:
        assert time.monotonic() < deadline, "the picture did not follow the slider"
        time.sleep(0.5)


def test_no_widget_is_cut_off_or_ends_in_an_error(lab_page):
    assert not lab_page.locator(".jp-OutputArea-output[data-mime-type*=stderr]").count()
    assert not lab_page.locator(".jp-RenderedText pre .ansi-red-fg").count()
    for image in lab_page.locator(".jp-OutputArea-output .widget-image").all():
        place = image.bounding_box()
        assert place["x"] + place["width"] <= 1400


# the site ------------------------------------------------------------------------

LANES = [
    Lane("ar", ("One", " two", " three."), (1, 1, 1), (0.0, 1.0, 2.0)),
    Lane("xpress", ("One", " two three."), (1, 2), (0.0, 0.5)),
]


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The whole site, as it is built."""
    out = tmp_path_factory.mktemp("site") / "book"
    build(
        find([]),
        out,
        glossary=FOLDER / "glossary.md",
        teaching=FOLDER / "teaching.md",
        races={"Why?": LANES, "How?": LANES[:1]},
        results=data_folder() / "results",
    )
    return out


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_the_screen_and_ask_for_nothing(browser, book, width, scheme):
    size = {"width": width, "height": 840}
    page = browser.new_page(viewport=size, color_scheme=scheme)
    asked, wrong = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for path in sorted(book.glob("*.html")):
        page.goto(path.as_uri())
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, path.name
    page.close()
    assert all(url.startswith(book.as_uri()) for url in asked)
    assert not wrong


def test_the_race_plays_without_a_kernel(browser, book):
    page = browser.new_page(reduced_motion="reduce")
    page.goto((book / "index.html").as_uri())
    lane = page.locator(".heat:visible .lane").first
    clock = page.locator(".clock")
    assert lane.locator(".count").inner_text() == "3 tokens"
    clock.fill("600")  # 1.2 of 2 seconds
    assert page.locator(".time").inner_text() == "1.20 s"
    assert lane.locator(".count").inner_text() == "2 tokens"
    assert lane.locator(".newest").inner_text() == " two"
    assert lane.locator(".later").count() == 1
    assert "✓" in page.locator(".heat:visible .lane").nth(1).inner_text()
    page.locator(".prompts").select_option(label="How?")
    assert page.locator(".heat:visible .lane").count() == 1
    page.wait_for_function("document.querySelector('.clock').value > 5")  # it plays
    page.locator(".play").click()
    stopped = clock.input_value()
    page.wait_for_timeout(300)
    assert clock.input_value() == stopped
    page.close()
