"""Draws docs/_static/timeline.svg: two nodes through warm-up, cycling and cool-down.

    python docs/timeline.py            # rewrites the picture
    python docs/timeline.py --print    # to standard output

The times are invented for the picture; the order of events is not: it follows the rules of one
update (docs/concepts.md) with B = 4 and S = 2.
"""

import pathlib
import sys

WARMUP, CYCLING, COOLDOWN = 2, 10, 2
B, S = 4, 2
EXCHANGE, BLOCKING = 1.3, 0.8  # in units of a step's computation
COMPUTE = [  # node 1 is slower now and then
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    [1.15, 1, 1.1, 1, 1, 1.2, 1, 1, 1.1, 1, 1, 1.15, 1, 1.1],
]
SCALE, LEFT, HEIGHT = 54, 92, 34
LANES = {0: 66, "link": 132, 1: 198}
COLOURS = {"warm-up": "#d9c48f", "cycling": "#9fc3a8", "cool-down": "#a9bcd8"}
INK, LINK, WAIT = "#222222", "#7a5c9e", "#d0d0d0"


def phase(step):
    if step < WARMUP:
        return "warm-up"
    return "cycling" if step < WARMUP + CYCLING else "cool-down"


def simulate():
    """Returns steps (node, number, begin, end), waits (node, begin, end), links, marks."""
    now, steps, waits, links, marks = [0.0, 0.0], [], [], [], []
    in_flight, last_start = None, None
    for n in range(WARMUP + CYCLING + COOLDOWN):
        computed = [now[p] + COMPUTE[p][n] for p in (0, 1)]
        for p in (0, 1):
            steps.append((p, n, now[p], computed[p]))
        now = computed
        last = n == WARMUP + CYCLING - 1
        if phase(n) == "cycling":
            if in_flight and (n - last_start >= S or last):
                for p in (0, 1):
                    if in_flight > now[p]:
                        waits.append((p, now[p], in_flight))
                        now[p] = in_flight
                    marks.append((p, now[p], "merge", n - last_start))
                in_flight = None
            if not last and (last_start is None or n - last_start >= B):
                last_start, begin = n, max(now)
                in_flight = begin + EXCHANGE
                links.append((begin, in_flight, "hidden"))
                marks.extend((p, now[p], "start", 0) for p in (0, 1))
        if phase(n) != "cycling" or last:  # everybody waits for everybody
            begin, end = max(now), max(now) + BLOCKING
            waits.extend((p, now[p], end) for p in (0, 1))
            links.append((begin, end, "blocking"))
            now = [end, end]
    return steps, waits, links, marks


def draw():
    steps, waits, links, marks = simulate()
    end = max(stop for *_, stop in waits)
    width, height = round(LEFT + end * SCALE + 24), 300
    x = lambda time: round(LEFT + time * SCALE, 1)  # noqa: E731
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="13" role="img">',
        "<title>Two nodes: blocking warm-up, cycling with hidden exchanges, cool-down</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
    ]

    def text(at, y, words, anchor="start", colour=INK, size=13):
        out.append(
            f'<text x="{at}" y="{y}" text-anchor="{anchor}" fill="{colour}" '
            f'font-size="{size}">{words}</text>'
        )

    def box(begin, stop, y, colour, tall=HEIGHT, stroke="none"):
        out.append(
            f'<rect x="{x(begin)}" y="{y}" width="{round((stop - begin) * SCALE, 1)}" '
            f'height="{tall}" fill="{colour}" stroke="{stroke}"/>'
        )

    begin = 0.0
    for name in COLOURS:
        stop = max(s[3] for s in steps if phase(s[1]) == name)
        blocking = [w[2] for w in waits if w[2] >= stop]
        stop = min(blocking) if blocking else stop
        out.append(
            f'<line x1="{x(begin) + 2}" y1="38" x2="{x(stop) - 2}" y2="38" '
            f'stroke="{COLOURS[name]}" stroke-width="5"/>'
        )
        text(round((x(begin) + x(stop)) / 2, 1), 26, name, "middle")
        begin = stop

    text(12, LANES[0] + 22, "node 0")
    text(12, LANES["link"] + 22, "network")
    text(12, LANES[1] + 22, "node 1")
    for p, n, start, stop in steps:
        box(start, stop, LANES[p], COLOURS[phase(n)], stroke="#ffffff")
        text(round((x(start) + x(stop)) / 2, 1), LANES[p] + 22, n, "middle")
    for p, start, stop in waits:
        box(start, stop, LANES[p], WAIT, stroke="#ffffff")
    for start, stop, kind in links:
        box(start, stop, LANES["link"] + 6, LINK if kind == "hidden" else "#b3a3c7", HEIGHT - 12)
    for p, time, kind, age in marks:
        lane, top = LANES[p], LANES["link"] + 6
        near, far = (lane + HEIGHT, top) if p == 0 else (lane, top + HEIGHT - 12)
        if kind == "start":
            target = next(s for s, _, k in links if k == "hidden" and s >= time)
            line = (x(time), near, x(target), far)
        else:
            source = max(e for _, e, k in links if k == "hidden" and e <= time + 1e-9)
            line = (x(source), far, x(time), near)
        out.append(
            '<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="{}" stroke-width="1.5" '
            'marker-end="url(#tip)"/>'.format(*line, LINK)
        )
        label = "start" if kind == "start" else f"merge, age {age}"
        both = any(m[2] != kind and m[0] == p and m[1] == time for m in marks)
        text(
            x(time), lane - 6 if p == 0 else lane + HEIGHT + 16, label, "middle", LINK, 11
        ) if not (both) else None
    out.insert(
        3,
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" '
        f'fill="{LINK}"/></marker></defs>',
    )

    legend = [
        (COLOURS["cycling"], "computing a step (its number)"),
        (LINK, "exchange of parameters, hidden behind the next steps"),
        ("#b3a3c7", "blocking mean"),
        (WAIT, "waiting"),
    ]
    at = LEFT
    for colour, words in legend:
        out.append(f'<rect x="{at}" y="266" width="14" height="14" fill="{colour}"/>')
        text(at + 20, 278, words, size=12)
        at += 52 + round(6.1 * len(words))
    out.append("</svg>")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(draw())
    else:
        (pathlib.Path(__file__).parent / "_static" / "timeline.svg").write_text(draw())
