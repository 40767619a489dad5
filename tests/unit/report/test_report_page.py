"""The report in a real browser: loads nothing, fits a phone, can be read and reached by keys."""

import os

import pytest
from browser import Browser, find_browser
from recorded import header, step, write_run

from jdaso.report import make_page, read_run


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


VIEWS = [
    pytest.param(
        {"width": width, "height": 800, "dark": dark}, id=f"{width}-{'dark' if dark else 'light'}"
    )
    for width in (360, 1280)
    for dark in (False, True)
]


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_loaded_and_nothing_is_said_on_the_console(browser, page, view):
    browser.open(page, **view)
    asked = [about["request"]["url"] for method, about in browser.events if "requestWill" in method]
    assert asked == [page.as_uri()]
    said = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert not [event for event in browser.events if event[0] in said]
    assert browser.run("document.scripts.length") == 0
    assert browser.run("document.title") == "A report"


@pytest.mark.parametrize("view", VIEWS)
def test_it_fits_the_window_with_everything_unfolded(browser, page, view):
    browser.open(page, **view)
    browser.run("document.querySelectorAll('details').forEach(x => { x.open = true })")
    assert browser.run("document.documentElement.scrollWidth") == view["width"]
    beyond = """[...document.querySelectorAll('body *')].filter(x => !x.closest('.scroll, .skip')
        && x.getBoundingClientRect().right > innerWidth).map(x => x.outerHTML.slice(0, 80))"""
    assert browser.run(beyond) == []
    sizes = """[...document.querySelectorAll('figure > svg text')].map(x => x.getScreenCTM()).map(
        m => 13 * Math.hypot(m.a, m.b))"""
    assert min(browser.run(sizes)) > 11


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
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) { const x = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || x.tagName == 'title') continue;
    const style = getComputedStyle(x), ink = x.closest('svg') ? style.fill : style.color;
    found.push(['text', x.textContent.slice(0, 30), ratio(ink, below(x))]) }
  for (const x of document.querySelectorAll('path.line, path.dot, .fault, rect.bar')) {
    const style = getComputedStyle(x);
    const paint = x.matches('.line, .fault') ? style.stroke : style.fill;
    found.push(['drawn', x.getAttribute('class'), ratio(paint, below(x))]) }
  for (const x of document.querySelectorAll('rect.warmup, rect.cycling, rect.cooldown'))
    for (const line of x.parentElement.querySelectorAll('path.line'))
      found.push(['drawn', x.getAttribute('class'), ratio(getComputedStyle(line).stroke,
        getComputedStyle(x).fill)]);
  return found })()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_stand_out(browser, page, dark):
    """WCAG 2.2: 4.5 to 1 for text (1.4.3), 3 to 1 for what is drawn (1.4.11)."""
    browser.open(page, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(x => { x.open = true })")
    found = browser.run(CONTRAST)
    assert {kind for kind, _, _ in found} == {"text", "drawn"} and len(found) > 200
    least = {"text": 4.5, "drawn": 3.0}
    assert [entry for entry in found if entry[2] < least[entry[0]]] == []
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark


def test_every_thing_to_act_on_is_reached_by_tab_and_shows_it(browser, page):
    browser.open(page)
    wanted = browser.run("document.querySelectorAll('a[href], summary').length")
    tables = browser.run(
        "[...document.querySelectorAll('.scroll')].filter(x => x.checkVisibility()).length"
    )
    assert wanted > 15 and tables >= 4
    reached = []
    for _ in range(wanted + tables):
        browser.press("Tab")
        reached.append(
            browser.run("""(x => { x.seen = true; return [x.tagName,
            getComputedStyle(x).outlineStyle, x.getBoundingClientRect().left >= 0] })
            (document.activeElement)""")
        )
    assert {tag for tag, _, _ in reached} == {"A", "SUMMARY", "DIV"}
    assert all(outline != "none" and visible for _, outline, visible in reached)
    assert browser.run(
        "[...document.querySelectorAll('a[href], summary')].every(x => x.seen === true)"
    )
    assert reached[0][0] == "A" and reached[-1][0] == "SUMMARY"


def test_a_chart_is_unfolded_and_the_summary_is_reached_without_a_mouse(browser, page):
    browser.open(page)
    browser.press("Tab")
    browser.press("Enter")
    assert browser.run("location.hash") == "#summary"
    browser.run("document.querySelector('summary').focus()")
    browser.press("Enter")
    assert browser.run("document.querySelector('details').open") is True


def test_charts_and_tables_have_names_for_screen_readers(browser, page):
    browser.open(page)
    browser.run("document.querySelectorAll('details').forEach(x => { x.open = true })")
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]
    roles = {"image", "table", "region", "navigation", "link", "figure"}
    assert [entry for entry in named if entry[0] in roles and not entry[1].strip()] == []
    images = [name for role, name in named if role == "image"]
    assert sum(name.startswith("Loss against steps. ") for name in images) == 1
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


def test_lines_are_told_apart_without_colour(browser, page):
    browser.open(page)
    dashes = browser.run(
        "[...document.querySelector('figure').querySelectorAll('path.line')].map("
        "x => getComputedStyle(x).strokeDasharray)"
    )
    assert len(dashes) == len(set(dashes)) == 2
