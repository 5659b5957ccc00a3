"""The report in a real browser: it draws, it obeys, and words from data stay words."""

from __future__ import annotations

import shutil
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest

from spatialgears.report import ReportContent, write_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --use-angle=swiftshader --enable-unsafe-swiftshader "
    "--disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars --window-size=1200,900"
)
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    chromedriver = shutil.which("chromedriver")
    if not browser or not chromedriver:
        pytest.skip("no Chromium with chromedriver found")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(driver, make_content, hostile, tmp_path_factory):
    path = write_page(tmp_path_factory.mktemp("page") / "report.html", make_content(2000, word=hostile))
    return opened(driver, path)


def opened(driver, path):
    driver.get(path.as_uri())
    wait(driver, "document.documentElement.dataset.ready")
    driver.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    return driver


def wait(driver, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 60).until(lambda d: d.execute_script(f"return {condition}"))


def errors(driver):
    return [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def picture(driver, name):
    """What is on the screen where the element is, once two frames in a row are the same."""
    from PIL import Image

    element = driver.find_element("id", name)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    last = None
    for _ in range(20):
        image = np.asarray(Image.open(BytesIO(element.screenshot_as_png)).convert("RGB"), dtype=np.int16)
        if last is not None and image.shape == last.shape and (image == last).all():
            return image
        last = image
    return last


def color_by(driver, text):
    from selenium.webdriver.support.ui import Select

    Select(driver.find_element("id", "color")).select_by_visible_text(text)


def share(image, color):
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return (np.abs(image - wanted).max(axis=2) < 12).mean()


def test_hostile_words_are_shown_and_not_run(page, hostile):
    assert errors(page) == []
    assert page.execute_script("return window.hacked === undefined")
    assert page.execute_script("return document.querySelectorAll('script').length") == 3
    assert page.execute_script("return document.querySelectorAll('img[src=x]').length") == 0
    legend = [item.text for item in page.find_elements("css selector", ".legend button")]
    assert any(hostile in text for text in legend)
    titles = page.execute_script(
        "return [...document.querySelectorAll('#slides-plot text')].map(t => t.textContent)"
    )
    assert any(title.startswith("slide </script>") for title in titles)
    curves = page.execute_script("return document.querySelector('.curves .legendtext').textContent")
    assert curves == hostile.partition("/")[2]  # what stands before the first slash is the phase
    hover = "emit('plotly_hover', {points: [{curveNumber: 1, pointNumber: 0}]})"
    page.execute_script(f"document.querySelector('#map-plot').{hover}")
    assert hostile in page.find_element("id", "tip").text
    assert page.execute_script("return window.hacked === undefined")


def test_figures_have_words_and_headings_an_order(page):
    script = "return [...document.querySelectorAll('.plot')].map(e => e.getAttribute('aria-label'))"
    labels = page.execute_script(script)
    assert len(labels) > 2 and all(labels) and any(" from " in label and " to " in label for label in labels)
    script = "return [...document.querySelectorAll('h1, h2, h3, h4')].map(e => Number(e.tagName[1]))"
    levels = page.execute_script(script)
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_nothing_is_fetched(page):
    names = page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in names if not name.startswith(("data:", "blob:"))] == []


def test_map_and_slides_follow_the_chosen_colour(page):
    color_by(page, "cell_type")
    by_type, slides_by_type = picture(page, "map-plot"), picture(page, "slides-plot")
    assert share(by_type, "#0072B2") > 0.005 and share(by_type, "#E69F00") > 0.005
    color_by(page, "Mbp")
    by_gene, slides_by_gene = picture(page, "map-plot"), picture(page, "slides-plot")
    assert share(by_gene, "#E69F00") < 0.001 and share(by_gene, "#440154") > 0.005
    assert (by_type != by_gene).any(axis=2).mean() > 0.02
    assert (slides_by_type != slides_by_gene).any(axis=2).mean() > 0.01
    assert "Mbp" in page.find_element("id", "slides-key").text
    assert errors(page) == []


def test_pressing_a_label_singles_it_out(page):
    color_by(page, "cell_type")
    before = picture(page, "map-plot")
    button = page.find_elements("css selector", ".legend button")[1]
    button.click()
    after = picture(page, "map-plot")
    assert button.get_attribute("aria-pressed") == "true"
    assert share(after, "#C8C8C8") > 2 * share(before, "#C8C8C8") + 0.01
    assert share(after, "#0072B2") < share(before, "#0072B2") / 5
    button.click()


def test_keys_and_buttons_move_the_map(page):
    span = "(([a, b]) => b - a)(document.getElementById('map-plot')._fullLayout.xaxis.range)"
    whole = page.execute_script(f"return {span}")
    page.find_element("id", "map-plot").send_keys("+")
    wait(page, f"{span} < {0.8 * whole}")
    page.find_element("id", "zoom-all").click()
    wait(page, f"Math.abs({span} - {whole}) < 1e-6")


def test_map_can_be_saved_under_the_policy(page):
    page.set_script_timeout(60)
    url = page.execute_async_script(
        "Plotly.toImage(document.getElementById('map-plot'), {format: 'png', width: 300, height: 300})"
        ".then(arguments[0], (error) => arguments[0](String(error)))"
    )
    assert url.startswith("data:image/png")
    assert errors(page) == []


def test_phone_width_needs_no_sideways_scrolling(page):
    metrics = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wait(page, "document.querySelector('#map-plot .main-svg').clientWidth < 400")
    assert page.execute_script("return document.documentElement.scrollWidth") <= 400
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_bare_report_says_what_is_not_there(driver, tmp_path):
    places = np.random.default_rng(0).normal(size=(30, 2))
    bare = opened(driver, write_page(tmp_path / "bare.html", ReportContent("Bare", places)))
    assert errors(bare) == []
    text = bare.find_element("tag name", "main").text
    for words in ("No slides were given", "No column and no gene", "No training history"):
        assert words in text
    assert share(picture(bare, "map-plot"), "#0072B2") > 0.001
