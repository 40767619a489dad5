"""The contents of plots."""

import json

import jax.numpy as jnp
import pytest
from matplotlib.figure import Figure

from jdaso.cli import main
from jdaso.fabric import Fabric
from jdaso.pipeline import make_schedule, partition
from jdaso.plots import StageBar, draw_plan, draw_schedule, draw_stages, plot_timeline
from jdaso.traces._timeline import Event


def test_a_timeline_is_drawn(tmp_path):
    events = [
        Event("step", 0, 1.0, 1.2),
        Event("exchange", 0, 1.19, 1.9),
        Event("copy", 0, 1.18, 1.19),
        Event("chunk", 0, 1.2, 1.9, "worker 0", 0),
        Event("step", 1, 1.2, 1.4),
        Event("wait", 0, 1.88, 1.9),
    ]
    picture = tmp_path / "timeline.svg"
    plot_timeline(reversed(events), picture)
    drawn = picture.read_text()
    assert drawn.count("<!-- step -->") == drawn.count("<!-- exchange -->") == 1
    assert (
        "<!-- held up -->" in drawn
        and "<!-- copy -->" not in drawn
        and "<!-- chunk -->" not in drawn
    )
    with pytest.raises(ValueError, match="no events to draw"):
        plot_timeline([], picture)


def test_a_plan_is_drawn(tmp_path):
    stages = [StageBar("0 conv", 0.5, 1_500_000), StageBar("1 mid", 0.3, 0), ("2 head", 0.2, 900)]
    picture = tmp_path / "plan.svg"
    draw_stages(stages, [(0, 1, 2e6), (1, 2, 1e6), (0, 2, 5.25e6)], picture)
    drawn = picture.read_text()
    for words in ("0 conv", "2 head", "1.5 M", "900", "2 MB", "1 MB", "5.25 MB"):
        assert f"<!-- {words} -->" in drawn, words
    draw_stages(stages[:1], [], tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no stages to draw"):
        draw_stages([], [], picture)
    with pytest.raises(ValueError, match="a later one of 3, got 1 to 3"):
        draw_stages(stages, [(1, 3, 1.0)], picture)


@pytest.mark.parametrize(("name", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_a_schedule_is_drawn(name, chunks, tmp_path):
    schedule = make_schedule(name, 3, 6, chunks)
    picture = tmp_path / "schedule.svg"
    seconds = [1.0] * schedule.stages, [2.0] * schedule.stages
    draw_schedule(schedule.order, seconds, picture, fabric=Fabric(3, 1e9, 0.1))
    drawn = picture.read_text()
    for rank in range(3):
        assert f"<!-- rank {rank} -->" in drawn
    for stage in range(schedule.stages):
        for microbatch in range(6):
            for way in ("forward", "backward"):
                assert f'id="{way}-{stage}-{microbatch}"' in drawn
    with pytest.raises(ValueError, match="no actions to draw"):
        draw_schedule([[]], ([], []), picture)


def test_a_plan_is_drawn_with_its_skips(tmp_path):
    def loss_fn(params, batch):
        first = jnp.tanh(batch @ params["a"])
        second = jnp.tanh(first @ params["b"])
        return jnp.mean((second @ params["c"] + first) ** 2)

    params = {name: jnp.ones((16, 16)) for name in "abc"}
    plan = partition(loss_fn, params, jnp.ones((8, 16)), num_partitions=3, num_microbatches=2)
    size = 4.0 * 16 * 4  # a micro-batch of 4 samples
    assert {(0, 1), (0, 2), (1, 2)} == {(source, target) for source, target, _ in plan.traffic}
    assert {row[2] for row in plan.traffic} == {size}
    assert 2 * sum(row[2] for row in plan.traffic) == sum(plan.bytes_in)  # both ways
    draw_plan(plan, tmp_path / "plan.svg")
    drawn = (tmp_path / "plan.svg").read_text()
    assert drawn.count("<!-- 0.256 kB -->") == 3 and "<!-- 256 -->" in drawn


@pytest.mark.parametrize("backward", ["0", "0.66"])
def test_the_curves_of_speed_are_those_of_the_table(backward, tmp_path, capsys, monkeypatch):
    """The picture shows the numbers of the table, also where a backward pass hides averages."""
    drawn, save = {}, Figure.savefig

    def keep(figure, *args, **kwargs):
        for line in figure.axes[0].lines:
            drawn[line.get_label()] = dict(zip(*line.get_data(), strict=True))
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    options = ["--nodes", "8", "--backward", backward, "--plot", str(tmp_path / "speed.svg")]
    assert main(["simulate", *options, "--json"]) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    for method in ("daso", "synchronous"):
        assert drawn[method][8] == pytest.approx(rows[method]["of no network"], rel=1e-12)


def test_the_help_of_the_plot_names_what_it_shows(capsys):
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "--plot FILE speed relative to no network against nodes, to 4096; PNG or SVG" in said
