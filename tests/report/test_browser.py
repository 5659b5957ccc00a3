"""The report in a real browser: it draws, it obeys, and words from data stay words."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest

from spatialgears.pipeline.pose import Pose
from spatialgears.report import ReportContent, ReportSlide, write_page

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
def report(make_content, hostile, tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("page") / "report.html", make_content(2000, word=hostile))


@pytest.fixture
def page(driver, report):
    return driver if driver.current_url == report.as_uri() else opened(driver, report)


@contextmanager
def screen(driver, width, height):
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        wait(driver, f"document.querySelector('#map-plot .main-svg').clientWidth < {width}")
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


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


def halves(driver):
    """What the two panels show: the cells, and the slide."""
    image = picture(driver, "map-plot")[30:]  # below the titles
    return np.array_split(image, 2, axis=1)


def color_by(driver, text):
    from selenium.webdriver.support.ui import Select

    Select(driver.find_element("id", "color")).select_by_visible_text(text)
    wait(driver, f"gearsFigure.state.field.name === {json.dumps(text)}")


def search_gene(driver, name):
    box = driver.find_element("id", "gene")
    box.clear()
    box.send_keys(name + "\n")


def saved(driver, kind):
    driver.set_script_timeout(60)
    url = driver.execute_async_script(
        "const [kind, done] = arguments, reader = new FileReader();"
        "reader.onload = () => done(reader.result);"
        "gearsSave.make(kind).then((file) => reader.readAsDataURL(file), (error) => done(`,${btoa(error)}`));",
        kind,
    )
    return b64decode(url.partition(",")[2])


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
        "return [...document.querySelectorAll('#map-plot text')].map(t => t.textContent)"
    )
    assert any(title.startswith("slide </script>") for title in titles)
    page.execute_script("document.querySelector('#training details').open = true")
    wait(page, "document.querySelector('.curves .legendtext')")
    curves = page.execute_script("return document.querySelector('.curves .legendtext').textContent")
    assert curves == hostile.partition("/")[2]  # what stands before the first slash is the phase
    hover = "emit('plotly_hover', {points: [{curveNumber: 1, pointNumber: 0}]})"
    page.execute_script(f"document.querySelector('#map-plot').{hover}")
    assert hostile in page.find_element("id", "tip").text
    assert page.execute_script("return window.hacked === undefined")


def test_figures_have_words_and_headings_an_order(page):
    script = "return [...document.querySelectorAll('.plot')].map(e => e.getAttribute('aria-label'))"
    labels = page.execute_script(script)
    assert len(labels) > 1 and all(labels) and any(" from " in label and " to " in label for label in labels)
    script = "return [...document.querySelectorAll('h1, h2, h3, h4')].map(e => Number(e.tagName[1]))"
    levels = page.execute_script(script)
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_nothing_is_fetched(page):
    names = page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in names if not name.startswith(("data:", "blob:"))] == []


def test_map_and_slides_follow_the_chosen_colour(page):
    color_by(page, "cell_type")
    by_type, slides_by_type = halves(page)
    assert share(by_type, "#0072B2") > 0.005 and share(by_type, "#E69F00") > 0.005
    color_by(page, "Mbp")
    by_gene, slides_by_gene = halves(page)
    assert share(by_gene, "#E69F00") < 0.001 and share(by_gene, "#440154") > 0.005
    assert (by_type != by_gene).any(axis=2).mean() > 0.02
    assert (slides_by_type != slides_by_gene).any(axis=2).mean() > 0.01
    assert (
        "Mbp" in page.find_element("id", "map-key").text
        and "spots" in page.find_element("id", "map-key").text
    )
    assert errors(page) == []


def test_pressing_a_label_singles_it_out(page):
    color_by(page, "cell_type")
    before = halves(page)[0]
    button = page.find_elements("css selector", ".legend button")[1]
    button.click()
    after = halves(page)[0]
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


def test_the_picture_that_is_saved_has_title_legend_and_colour_bars(page, hostile):
    from PIL import Image

    color_by(page, "cell_type")
    vector = saved(page, "svg").decode()
    assert vector.startswith("<svg")
    for words in ("Title ", "neuron", "glia", "2,000 cells at their predicted", hostile[:9]):
        assert words in unescape(vector)
    color_by(page, "Mbp")
    vector = saved(page, "svg").decode()
    assert (
        "Mbp (log-normalised expression), cells" in vector
        and "Mbp (log-normalised expression), spots" in vector
    )
    image = Image.open(BytesIO(saved(page, "png")))
    assert image.width == 2100 and round(image.info["dpi"][0]) == 300
    assert errors(page) == []


def test_any_gene_can_be_found_whatever_the_case_of_its_letters(driver, tmp_path):
    """Of 60 genes the menu has twelve: the one looked for is not among them, and is drawn where its cells are."""
    rng = np.random.default_rng(0)
    places = rng.uniform(-1, 1, size=(3000, 2))
    genes = {f"Gene{i}": np.where(rng.random(3000) < 0.1, rng.random(3000), 0) for i in range(60)}
    genes["Needle"] = np.where(places[:, 0] > 0, 5.0, 0.0)  # dense
    genes["Pin"] = np.where((places[:, 0] < 0) & (rng.random(3000) < 0.2), 5.0, 0.0)  # sparse
    page = opened(driver, write_page(tmp_path / "genes.html", ReportContent("t", places, genes=genes)))
    menu = page.find_element("id", "color").text
    assert "Gene0" in menu and "Needle" not in menu
    for name, typed, side in (("Needle", "needle", 1), ("Pin", "Pin", 0)):
        search_gene(page, typed)
        wait(page, f"gearsFigure.state.field.name === '{name}'")
        bright = [share(half, "#FDE725") for half in halves(page)]
        assert bright[side] > 0.01 and bright[1 - side] < 0.001
    search_gene(page, "Haystack")
    wait(page, "document.getElementById('map-note').textContent.includes('Haystack')")
    assert errors(page) == []


@pytest.fixture
def corner():
    """An L of cells and the same L of spots, which lies turned and mirrored in its own coordinates."""
    grid = np.stack(np.meshgrid(np.arange(20.0), np.arange(20.0)), axis=-1).reshape(-1, 2)
    shape = grid[(grid[:, 0] < 6) | (grid[:, 1] < 6)] / 10 - 1
    pose = Pose(np.array([[0.0, 300.0], [300.0, 0.0]]), np.array([4000.0, 900.0]))
    long = {"arm": np.where(shape[:, 0] > -0.4, 1.0, 0.0)}

    def make(y_down):
        slide = ReportSlide("s", pose(shape), long, pose=pose, y_down=y_down)
        return ReportContent("L", shape, genes=long, slides=[slide])

    return make


@pytest.mark.parametrize("y_down", [False, True])
def test_the_map_lies_as_the_slide_does(driver, tmp_path, corner, y_down):
    page = opened(driver, write_page(tmp_path / "pose.html", corner(y_down)))
    cells, spots = (share_map(half, "#FDE725", 12) for half in halves(page))
    assert np.corrcoef(cells.ravel(), spots.ravel())[0, 1] > 0.9
    for flipped in (spots[::-1], spots[:, ::-1], spots.T):  # no other pose would do
        assert np.corrcoef(cells.ravel(), flipped.ravel())[0, 1] < 0.5
    yellow = np.nonzero(spots > 0.05)[0].mean()
    other = np.nonzero(share_map(halves(page)[1], "#440154", 12) > 0.05)[0].mean()
    assert (yellow > other) == y_down  # the arm has the higher y


def share_map(image, color, n):
    """Share of a colour in each of (n, n) tiles."""
    return np.array(
        [[share(tile, color) for tile in np.array_split(row, n, axis=1)] for row in np.array_split(image, n)]
    )


def test_both_panels_move_together(driver, tmp_path, corner):
    page = opened(driver, write_page(tmp_path / "pose.html", corner(False)))
    page.find_element("id", "zoom-in").click()
    ranges = (
        "(([a, b]) => [a.range, b.range])(['', '2'].map((n) => gearsFigure.plot._fullLayout[`xaxis${n}`]))"
    )
    wait(page, f"gearsFigure.state.zoom > 1.2 && String({ranges}[0]) === String({ranges}[1])")


def test_another_slide_turns_the_map(driver, tmp_path, corner):
    from selenium.webdriver.support.ui import Select

    content = corner(False)
    shape = np.asarray(content.coords)
    other = replace(content.slides[0], name="as it is", coords=shape, pose=Pose(np.eye(2), np.zeros(2)))
    page = opened(
        driver, write_page(tmp_path / "two.html", replace(content, slides=[*content.slides, other]))
    )
    before = share_map(halves(page)[0], "#FDE725", 12)
    Select(page.find_element("id", "slide")).select_by_visible_text("as it is")
    wait(page, "gearsFigure.plot._fullLayout.xaxis.range[0] < 0")
    cells, spots = (share_map(half, "#FDE725", 12) for half in halves(page))
    assert np.corrcoef(cells.ravel(), spots.ravel())[0, 1] > 0.9
    assert np.corrcoef(cells.ravel(), before.ravel())[0, 1] < 0.5


@pytest.mark.parametrize(("width", "height"), [(1200, 900), (1440, 900), (400, 900)])
def test_the_map_is_on_the_first_screen(page, width, height):
    """With five warnings and a long title: half of the map is above the fold on a phone, all of it on a desk."""
    box = "document.getElementById('map-plot').getBoundingClientRect()"
    with screen(page, width, height):
        wait(page, f"{box}.width > 0.6 * document.documentElement.clientWidth")
        page.execute_script("scrollTo(0, 0)")
        top, bottom = page.execute_script(f"const box = {box}; return [box.top, box.bottom]")
    assert top < (0.35 if width > 1000 else 0.75) * height and (bottom <= height or width < 1000)


def test_phone_width_needs_no_sideways_scrolling(page):
    wide = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth + 4)"
    with screen(page, 400, 800):
        assert page.execute_script("return document.documentElement.scrollWidth") <= 400
        shadows = page.execute_script(f"return {wide}.map((box) => getComputedStyle(box).backgroundImage)")
    assert shadows and all(
        image.count("linear-gradient") == 4 for image in shadows
    )  # tables show that they scroll


def test_bare_report_says_what_is_not_there(driver, tmp_path):
    places = np.random.default_rng(0).normal(size=(30, 2))
    bare = opened(driver, write_page(tmp_path / "bare.html", ReportContent("Bare", places)))
    assert errors(bare) == []
    text = bare.find_element("tag name", "main").get_attribute("textContent")  # of what is folded, too
    for words in ("No slides were given", "No column and no gene", "No training history"):
        assert words in text
    assert share(picture(bare, "map-plot"), "#0072B2") > 0.001
