"""Every example on two nodes, as its docstring says to launch it."""

import re
import runpy
from pathlib import Path

import pytest
from launcher import ROOT, mpirun
from nights import nightly, rows

# Arguments, devices per node, and the least fall of the loss.
EXAMPLES = {
    "smallest.py": ([], 1, 0.1),
    "linen_shard_map.py": ([], 2, 0.5),
    "fsdp.py": ([], 4, 0.3),
    "tensor_parallel.py": ([], 4, 0.2),
    "nnx_optimizer.py": ([], 1, 0.5),
    "equinox_mlp.py": ([], 1, 0.1),
    "optax_only.py": ([], 1, 0.5),
    "bfloat16.py": ([], 1, 0.5),
    "orbax_restore.py": (["FOLDER"], 1, 0.1),
    "datasets_source.py": ([], 1, 0.5),
    "pmap_legacy.py": ([], 2, 0.5),
    "larger_than_memory.py": ([], 1, 0.2),
    "char_transformer.py": (["--steps", "60"], 1, 0.7),
    "hybrid_transformer.py": (["--steps", "40"], 1, 0.6),
    "hybrid_resnet.py": (["--depth", "20", "--batch", "16", "--steps", "30"], 1, 0.95),
    "hybrid_unet.py": (["--steps", "60"], 1, 0.3),
    "hybrid_vgg16.py": (["--width", "8", "--batch", "16", "--steps", "40"], 1, 0.85),
    # Ten steps (eight warm-up, two cycling) show the shapes; nothing is learned in them.
    "resnet50_imagenet.py": (["--image-size", "32", "--batch", "2", "--steps", "10"], 1, None),
}
AS_USERS_COMPILE = {"smallest.py"}  # the others compile twice as long


def last_lines(output):
    """Returns ``{node: (first loss, last loss, checksum)}`` as printed by each node at the end."""
    found = re.findall(
        r"node (\d): loss (\d+\.\d+) -> (\d+\.\d+).*?parameters ([0-9a-f]{8})", output
    )
    return {int(node): (float(a), float(b), checksum) for node, a, b, checksum in found}


def check(done, falls_to):
    assert done.returncode == 0, done.stdout
    ends = last_lines(done.stdout)
    assert set(ends) == {0, 1}, done.stdout
    assert ends[0][2] == ends[1][2], "the nodes ended with different parameters"
    for first, last, _ in ends.values():
        assert falls_to is None or last < falls_to * first


def test_every_example_is_here():
    found = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert found == {*EXAMPLES, "arrays.py"}  # test_arrays.py has that one


@pytest.mark.parametrize("name", rows(EXAMPLES, ["smallest.py"]))
def test_example(name, tmp_path):
    arguments, devices, falls_to = EXAMPLES[name]
    arguments = [str(tmp_path) if a == "FOLDER" else a for a in arguments]
    script = ROOT / "examples" / name
    quick = name not in AS_USERS_COMPILE
    done = mpirun(2, [script, *arguments], devices=devices, quick_compiling=quick, timeout=250)
    check(done, falls_to)
    if name == "smallest.py":
        again = mpirun(2, [script, *arguments], devices=devices, timeout=250)
        assert last_lines(again.stdout) == last_lines(done.stdout), "the same run, other bits"
    if name == "orbax_restore.py":
        again = mpirun(2, [script, *arguments], quick_compiling=True, timeout=250)
        assert again.returncode == 0, again.stdout
        restored = dict(re.findall(r"node (\d): restored ([0-9a-f]{8})", again.stdout))
        assert restored == {str(n): end[2] for n, end in last_lines(done.stdout).items()}
        first, end = last_lines(done.stdout)[0][0], last_lines(again.stdout)[0]
        assert end[0] < 0.1 * first, "it began anew"
        assert end[2] != restored["0"], "it trained nothing more"
        arguments.append("2")  # ranks for each node, which restore what others have saved
        joined = mpirun(4, [script, *arguments], devices=2, quick_compiling=True, timeout=250)
        assert joined.returncode == 0, joined.stdout
        restored = re.findall(r"node (\d): restored ([0-9a-f]{8})", joined.stdout)
        assert sorted(restored) == [(str(n), end[2]) for n in (0, 0, 1, 1)], joined.stdout
        check(joined, None)
    if name == "datasets_source.py":
        assert done.stdout.count(" 5120 images,") == 2, done.stdout


@nightly
def test_smallest_under_open_mpi():
    check(mpirun(2, [ROOT / "examples/smallest.py"], mpi="openmpi", timeout=120), 0.1)


def load(name):
    return runpy.run_path(str(ROOT / "examples" / name), run_name="example")


def test_transformer_reads_a_given_text(tmp_path):
    (tmp_path / "text.txt").write_text("To be, or not to be: é. " * 400)
    read_text = load("char_transformer.py")["read_text"]
    text, source = read_text(tmp_path / "text.txt")
    assert source == f"Text: the file {tmp_path / 'text.txt'}, 10000 characters"
    assert bytes(text[:25].astype("u1")) == b"To be, or not to be: ??. "
    (tmp_path / "text.txt").write_text("too short")
    with pytest.raises(SystemExit, match="give at least 6400"):
        read_text(tmp_path / "text.txt")


def test_transformer_finds_a_text_anywhere(monkeypatch):
    example = load("char_transformer.py")
    monkeypatch.setitem(example["read_text"].__globals__, "JARGON", Path("/nowhere"))
    text, source = example["read_text"](None)
    assert "Python's reference manual" in source and len(text) > 100_000


def test_resnet_reads_folders_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("n01440764", "n01443537"):
        (tmp_path / name).mkdir()
        for n in range(3):
            colour = (80 * n, 255 if name.endswith("7") else 0, 0)
            image.new("RGB", (50 + n, 40), colour).save(tmp_path / name / f"{n}.JPEG")
    example = load("resnet50_imagenet.py")
    examples = example["find_images"](tmp_path, 0)
    assert [label for _, label in examples] == [0, 0, 0, 1, 1, 1]
    for n, (file, label) in enumerate(examples):
        pixels = example["read_image"]((file, label), 32, [0, n])
        assert pixels.shape == (32, 32, 3)
        assert abs(int(pixels[..., 0].mean()) - 80 * (n % 3)) < 5
        assert (pixels[..., 1].mean() > 200) == (label == 1)


def test_examples_are_short():
    for path in (ROOT / "examples").glob("*.py"):
        limit = {"smallest.py": 50, "resnet50_imagenet.py": 140}.get(path.name, 120)
        assert len(Path(path).read_text().splitlines()) < limit, path
