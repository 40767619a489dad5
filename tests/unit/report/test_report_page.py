"""The report in a real browser: loads nothing, fits a phone, is read and zoomed by keys."""

import os

import pytest
from browser import Browser, find_browser
from recorded import header, long_run, step, write_run

from jdaso.report import make_page, read_run
from jdaso.report._charts import COLOURS


@pytest.fixture(scope="module")
def browser():
    if find_browser() is None:
        if os.geteuid() == 0:
            pytest.fail("no browser: `make setup`, as root, installs chromium-headless-shell")
        pytest.skip("no chromium or chrome on PATH, and only root can install one")
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two runs of two nodes, with everything that a page can show."""
    folder, runs = tmp_path_factory.mktemp("report"), []
    for k, name in enumerate(("daso with a rather long name" * 2, "synchronous<script>")):
        nodes = []
        for node in range(2):
            rows = [header(node, num_nodes=2, settings={"a_setting_of_a_long_name": "x" * 90})]
            for n in range(1, 401):
                phase = "warm-up" if n < 40 else "cycling" if n < 360 else "cool-down"
                seconds = {"exchange_seconds": n / 50, "lost_seconds": n / 100 * k}
                totals = {"bytes_sent": 1000 * n * (k + 1), "blocking_seconds": n / 200} | seconds
                rows.append(step(n, phase=phase, loss=2 / n + n % 5 / 50 + k, **totals))
                if n % 100 == 0:
                    rows.append(rows[-1] | {"kind": "checkpoint"})
            rows.append({"kind": "fault", "step": 390, "seconds": 39.0, "text": "kill " * 30})
            events = [
                {"name": name, "step": 4 * m, "begin": m + 0.1, "end": m + 0.5}
                for m in range(4)
                for name in ("exchange", "wait", "compute", "pack", "checkpoint", "mean")
            ]
            nodes.append([*rows, {"kind": "events", "events": events}, "{torn", {"kind": "end"}])
        runs.append(read_run(write_run(folder / name, nodes)))
    path = folder / "report.html"
    path.write_text(make_page(runs, "A report"), encoding="utf-8")
    return path


def show(browser, path, **view):
    """Opens a page and waits until its charts are drawn."""
    browser.open(path, **view)
    browser.wait_for("'drawn' in document.body.dataset && Bokeh.documents.every(x => x.is_idle)")


VIEWS = [
    pytest.param(
        {"width": width, "height": 800, "dark": dark}, id=f"{width}-{'dark' if dark else 'light'}"
    )
    for width in (360, 1280)
    for dark in (False, True)
]
SAID = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_loaded_and_nothing_is_said_on_the_console(browser, page, view):
    show(browser, page, **view)
    asked = [about["request"]["url"] for method, about in browser.events if "requestWill" in method]
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
    assert not [event for event in browser.events if event[0] in SAID]
    assert browser.run("document.title") == "A report"


@pytest.mark.parametrize("view", VIEWS)
def test_it_fits_the_window_with_everything_unfolded(browser, page, view):
    show(browser, page, **view)
    browser.run("document.querySelectorAll('details').forEach(x => { x.open = true })")
    assert browser.run("document.documentElement.scrollWidth") == view["width"]
    beyond = """[...document.querySelectorAll('body *')].filter(x => !x.closest('.scroll, .skip')
        && x.getBoundingClientRect().right > innerWidth).map(x => x.outerHTML.slice(0, 80))"""
    assert browser.run(beyond) == []
    widths = """[...document.querySelectorAll('.chart')].map(x => [x.clientWidth,
        ...[...x.querySelectorAll('.bk-Figure')].map(y => y.getBoundingClientRect().width)])"""
    found = browser.run(widths)
    assert len(found) == 9 and all(place == drawn > 200 for place, drawn in found)


CONTRAST = """(() => {
  const rgb = text => text.match(/[0-9.]+/g).map(Number);
  const light = text => { const [r, g, b] = rgb(text).map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const below = x => { for (; x; x = x.parentElement) {
    const colour = getComputedStyle(x).backgroundColor, parts = rgb(colour);
    if (parts.length < 4 || parts[3] == 1) return colour } };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05) };
  const over = (colour, part, ground) => { const [a, b] = [rgb(colour), rgb(ground)];
    return 'rgb(' + a.map((v, k) => v * part + b[k] * (1 - part)).join() + ')' };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) { const x = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || x.tagName == 'SCRIPT') continue;
    found.push(['text', x.textContent.slice(0, 30), ratio(getComputedStyle(x).color, below(x))]) }
  for (const chart of document.querySelectorAll('.chart')) {
    const probe = chart.appendChild(document.createElement('i'));
    for (const name of ['axis-label-text', 'major-label-text']) {
      probe.style.color = 'var(--bk-' + name + '-color)';
      found.push(['text', name, ratio(getComputedStyle(probe).color, below(chart))]) }
    probe.remove() }
  for (const figure of document.querySelectorAll('figure')) {
    const styles = [...figure.querySelectorAll('.swatch line')].map(x => getComputedStyle(x));
    const bands = styles.filter(x => x.strokeOpacity < 1), card = below(figure);
    for (const x of styles.filter(x => x.strokeOpacity == 1))
      for (const ground of [card, ...bands.map(y => over(y.stroke, y.strokeOpacity, card))])
        found.push(['drawn', figure.ariaLabel, ratio(x.stroke, ground)]) }
  return found })()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_stand_out(browser, page, dark):
    """WCAG 2.2: 4.5 to 1 for text (1.4.3), 3 to 1 for what is drawn (1.4.11)."""
    show(browser, page, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(x => { x.open = true })")
    found = browser.run(CONTRAST)
    assert {kind for kind, _, _ in found} == {"text", "drawn"} and len(found) > 200
    least = {"text": 4.5, "drawn": 3.0}
    assert [entry for entry in found if entry[2] < least[entry[0]]] == []
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark


FOCUS = """(() => { let x = document.activeElement;
  while (x.shadowRoot?.activeElement) x = x.shadowRoot.activeElement;
  x.seen = true;
  return [x.tagName, x.title, getComputedStyle(x).outlineStyle,
          x.getBoundingClientRect().left >= 0] })()"""


def test_every_thing_to_act_on_is_reached_by_tab_and_shows_it(browser, page):
    show(browser, page)
    wanted, reached = "a[href], summary, input", []
    for _ in range(300):
        browser.press("Tab")
        if browser.run("document.activeElement === document.body"):
            break
        reached.append(browser.run(FOCUS))
    assert all(outline != "none" and visible for _, _, outline, visible in reached)
    assert browser.run(f"[...document.querySelectorAll('{wanted}')].every(x => x.seen === true)")
    assert reached[0][0] == "A" and reached[-1][0] == "SUMMARY"
    titles = [title for _, title, _, _ in reached]
    assert titles.count("Zoom In") == titles.count("Pan left") == titles.count("Reset") == 9


def test_a_chart_is_unfolded_and_the_summary_is_reached_without_a_mouse(browser, page):
    browser.open(page)
    browser.press("Tab")
    browser.press("Enter")
    assert browser.run("location.hash") == "#summary"
    browser.run("document.querySelector('summary').focus()")
    browser.press("Enter")
    assert browser.run("document.querySelector('details').open") is True


PLOT = "Bokeh.documents[0].roots()[0]"  # of the first chart, loss against steps
SPAN = f"[{PLOT}.x_range.start, {PLOT}.x_range.end]"
FRAME = f"""(() => {{ const view = Bokeh.index.find_one({PLOT}).frame.bbox;
  const place = document.querySelector('.chart').getBoundingClientRect();
  return [place.left + view.left, place.top + view.top, view.width, view.height] }})()"""


def focus(browser, title):
    """Moves the focus with the Tab key until it is on a tool of the first chart."""
    browser.run("document.querySelector('#scalar-0 .chart').previousElementSibling.tabIndex = 0")
    browser.run("document.querySelector('#scalar-0 .chart').previousElementSibling.focus()")
    for _ in range(20):
        browser.press("Tab")
        if browser.run(FOCUS)[1] == title:
            return
    raise AssertionError(f"no {title!r} in the first 20 places of the focus")


def test_a_chart_is_zoomed_moved_and_reset_by_keys(browser, page):
    show(browser, page)
    low, high = browser.run(SPAN)
    assert low < 1 and high > 400
    focus(browser, "Zoom In")
    browser.press("Enter")
    inner = browser.run(SPAN)
    assert low < inner[0] < inner[1] < high
    focus(browser, "Pan left")
    browser.press("Enter")
    moved = browser.run(SPAN)
    assert moved[0] < inner[0] and moved[1] < inner[1]
    focus(browser, "Reset")
    browser.press("Enter")
    assert browser.run(SPAN) == pytest.approx([low, high])


def test_a_chart_is_moved_by_the_mouse_and_shows_the_numbers_under_it(browser, page):
    show(browser, page, height=2000)
    low, high = browser.run(SPAN)
    left, top, width, height = browser.run(FRAME)
    x, y = left + width / 2, top + height / 2
    browser.point("mouseMoved", x, y)
    browser.point("mousePressed", x, y)
    for part in range(5):
        browser.point("mouseMoved", x + 10 * part, y)
    browser.point("mouseReleased", x + 40, y)
    moved = browser.wait_for(f"{PLOT}.x_range.start != {low} && {SPAN}")
    assert moved[0] < low and moved[1] < high
    view = f"Bokeh.index.find_one({PLOT}).frame"
    line = f"{PLOT}.renderers.find(x => x.glyph.type == 'Line').data_source.data"
    a, b = browser.run(f"""(() => {{ const [x, y] = [{line}.x[50], {line}.mean[50]];
        return [{view}.x_scale.compute(x), {view}.y_scale.compute(y)] }})()""")
    browser.point("mouseMoved", left - browser.run(f"{view}.bbox.left") + a, y)
    browser.point("mouseMoved", left + a - browser.run(f"{view}.bbox.left"),
                  top + b - browser.run(f"{view}.bbox.top"))  # fmt: skip
    told = browser.wait_for(TOOLTIP)
    assert "daso with a rather long name" in told and "steps" in told and "range" in told


TOOLTIP = """(() => { const found = []; const look = root => { for (const x of
  root.querySelectorAll('*')) { if (x.matches('.bk-Tooltip')) found.push(x.shadowRoot.textContent);
  if (x.shadowRoot) look(x.shadowRoot) } }; look(document); return found.join() })()"""
INK = """((chart, colour) => { const find = root => [...root.querySelectorAll('*')].flatMap(
    x => x.matches('canvas.bk-layer') ? [x] : x.shadowRoot ? find(x.shadowRoot) : []);
  const [canvas] = find(chart);
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let k = 0; k < data.length; k += 4)
    if (data[k + 3] == 255 && colour.every((v, n) => Math.abs(v - data[k + n]) < 3)) count++;
  return count })"""


def ink(browser, colour, chart="document.querySelector('.chart')"):
    """The number of pixels of a chart that have a colour."""
    numbers = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    return browser.run(f"{INK}({chart}, {numbers})")


def test_a_switch_of_the_legend_hides_its_line_and_shows_it_again(browser, page):
    show(browser, page)
    blue, orange = COLOURS[:2]
    before = ink(browser, blue), ink(browser, orange)
    assert min(before) > 50
    browser.run("document.querySelector('figure input').focus()")
    browser.press(" ")
    browser.wait_for(f"{PLOT}.renderers.some(x => !x.visible) && Bokeh.documents[0].is_idle")
    hidden = "requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = true }))"
    browser.run(hidden)
    browser.wait_for("window.painted && Bokeh.documents[0].is_idle")
    assert ink(browser, blue) == 0 and ink(browser, orange) > 50
    browser.press(" ")
    browser.run(f"window.painted = false; {hidden}")
    browser.wait_for("window.painted && Bokeh.documents[0].is_idle")
    assert ink(browser, blue) > 50


def test_axes_follow_a_change_to_dark(browser, page):
    show(browser, page)
    light, dark = "#4d5661", "#aeb7c2"
    assert ink(browser, light) > 100 and ink(browser, dark) == 0
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    browser.send("Emulation.setEmulatedMedia", features=[scheme])
    browser.run("requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = 1 }))")
    browser.wait_for("window.painted && Bokeh.documents[0].is_idle")
    assert ink(browser, dark) > 100 and ink(browser, light) == 0


def test_a_finger_scrolls_past_a_chart(browser, page):
    active = f"Object.values({PLOT}.toolbar.gestures).filter(x => x.active).length"
    show(browser, page, width=360)
    assert browser.run(active) == 1
    browser.send("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        show(browser, page, width=360)
        assert browser.run(active) == 0
    finally:
        browser.send("Emulation.setTouchEmulationEnabled", enabled=False)


def test_without_scripts_there_are_all_tables_and_no_empty_charts(browser, page):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        seen = """(name => [...document.querySelectorAll(name)].filter(
            x => x.checkVisibility()).length)"""
        assert browser.run(f"{seen}('.chart, .legend')") == 0
        browser.run("document.querySelectorAll('details').forEach(x => { x.open = true })")
        assert browser.run(f"{seen}('figure')") == 9 and browser.run(f"{seen}('table')") > 20
        rows = browser.run("[...document.querySelectorAll('figure')].map(x => x.innerText)")
        assert all("Numbers" in text and any(c.isdigit() for c in text) for text in rows)
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)


def test_names_that_look_like_markup_or_mathematics_are_text(browser, tmp_path):
    evil = '$$x^2$$ <img src=x onerror="window.broken=1">'
    rows = [header(0), *(step(n, **{evil: 1.0 * n, "$$x^2$$": n}) for n in range(1, 9))]
    rows.append({"kind": "fault", "step": 4, "seconds": 0.4, "text": evil})
    run = read_run(write_run(tmp_path, [rows]))
    run.name = evil
    path = tmp_path / "page.html"
    path.write_text(make_page([run]))
    show(browser, path, height=2000)
    left, top, width, height = browser.run(FRAME)
    told = ""
    for part in range(0, 101, 2):  # along the line, from corner to corner
        x, y = left + width * part / 100, top + height * (1 - part / 100)
        browser.point("mouseMoved", x, y)
        told += browser.run(TOOLTIP)
    assert "fault at step 4, node 0 $$x^2$$ <img" in told and "mean" in told
    assert browser.run("window.broken === undefined")
    assert not [event for event in browser.events if event[0] in SAID]


def test_the_page_of_a_long_run_is_small_and_opens_soon(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(make_page([long_run("long", steps=100_000, nodes=2)]))
    assert path.stat().st_size < 1_500_000
    show(browser, path)
    assert browser.run("performance.now()") < 20_000


def test_charts_and_tables_have_names_for_screen_readers(browser, page):
    show(browser, page)
    browser.run("document.querySelectorAll('details').forEach(x => { x.open = true })")
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]
    roles = {"table", "region", "navigation", "link", "figure", "checkbox"}
    assert [
        entry for entry in named if entry[0] in roles - {"group"} and not entry[1].strip()
    ] == []
    charts = [name for role, name in named if role == "group"]
    assert sum(name.startswith("Loss against steps. daso with") for name in charts) == 1
    assert sum(role == "table" for role, _ in named) > 10
    levels = browser.run("[...document.querySelectorAll('h1, h2')].map(x => x.tagName)")
    assert levels[0] == "H1" and set(levels[1:]) == {"H2"}


def test_tables_show_the_numbers_of_the_runs(browser, page):
    browser.open(page)
    rows = browser.run(
        "[...document.querySelectorAll('#summary tr')].map(x => [...x.cells].map(y => y.innerText))"
    )
    cells = {row[0]: row[1:] for row in rows}
    assert cells["steps"] == ["400", "400"]
    assert cells["seconds"] == ["40.0", "40.0"]
    assert cells["exchange time hidden"] == ["100.0 %", "50.0 %"]
    assert cells["seconds hidden, mean of nodes"] == ["8.00", "4.00"]
    assert cells["seconds exposed or blocking, mean of nodes"] == ["2.00", "6.00"]
    assert cells["bytes sent by a node"] == ["400,000", "800,000"]
    assert cells["checkpoints"] == ["4", "4"] and cells["faults"] == ["2", "2"]
    assert cells["rows left out as damaged"] == ["2", "2"]
    last = [2 / n + n % 5 / 50 for n in range(381, 401)]
    assert float(cells["loss, at the end"][0]) == pytest.approx(sum(last) / 20, rel=1e-3)


def test_lines_are_distinguished_without_colour(browser, page):
    show(browser, page)
    drawn = f"{PLOT}.renderers.filter(x => x.glyph.type == 'Line')"
    dashes = browser.run(f"{drawn}.map(x => x.glyph.line_dash.value.join())")
    swatches = browser.run(
        "[...document.querySelector('figure').querySelectorAll('.swatch line')].map("
        "x => x.getAttribute('stroke-dasharray') ?? '')"
    )
    assert len(dashes) == len(set(dashes)) == len(set(swatches)) == 2
    assert [dash.replace(" ", ",") for dash in swatches] == dashes
