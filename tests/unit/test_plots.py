"""What plots show."""

import pytest

from jdaso._timeline import Event
from jdaso.plots import plot_timeline


def test_a_timeline_is_drawn(tmp_path):
    events = [
        Event("step", 0, 1.0, 1.2),
        Event("exchange", 0, 1.19, 1.9),
        Event("start", 0, 1.18, 1.19),
        Event("step", 1, 1.2, 1.4),
        Event("wait", 0, 1.88, 1.9),
    ]
    picture = tmp_path / "timeline.svg"
    plot_timeline(reversed(events), picture)
    drawn = picture.read_text()
    assert drawn.count("<!-- step -->") == drawn.count("<!-- exchange -->") == 1
    assert "<!-- held up -->" in drawn and "<!-- start -->" not in drawn
    with pytest.raises(ValueError, match="no events to draw"):
        plot_timeline([], picture)
