"""Requirements on rows for Perfetto to draw them as intended."""

from collections import defaultdict

ROUNDING = 0.0021
"""Microseconds: begin and length are each rounded to nanoseconds."""


def are_chromes(rows):
    """Checks fields of rows and names of lanes; bars of a lane lie beside or within others."""
    lanes, named = defaultdict(list), set()
    for row in rows:
        assert row["ph"] in ("X", "M") and isinstance(row["name"], str), row
        assert isinstance(row["pid"], int) and isinstance(row["tid"], int), row
        if row["ph"] == "M":
            assert isinstance(row["args"], dict), row
            if row["name"] == "thread_name":
                named.add((row["pid"], row["tid"]))
            continue
        assert row["ts"] == row["ts"] and row["dur"] >= 0 and isinstance(row["args"]["step"], int)
        assert (row["pid"], row["tid"]) in named, f"a lane without a name: {row}"
        lanes[row["pid"], row["tid"]].append(row)
    for bars in lanes.values():
        bars.sort(key=lambda row: (row["ts"], -row["dur"]))
        around = []
        for row in bars:
            end = row["ts"] + row["dur"]
            while around and around[-1]["ts"] + around[-1]["dur"] <= row["ts"] + ROUNDING:
                around.pop()
            inside = not around or end <= around[-1]["ts"] + around[-1]["dur"] + ROUNDING
            assert inside, f"two bars of a lane cross: {around[-1]} and {row}"
            around.append(row)
