"""Refuses docstrings that open with an indirect question, and nodes that talk.

    .venv/bin/python tools/words.py [FOLDER...]

A docstring starts with a verb or with the thing itself ("Returns ...", "The longest wait ..."),
never with What, Whether, Who, How, Which, Where, Why or Whose. Nodes do not say, hear, know or owe:
they send, receive, hold; ranks fail.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("jdaso", "tests", "benchmarks", "examples", "tools")
OPENING = re.compile(r"(What|Whether|Who|How|Which|Where|Why|Whose)\b")
TALK = re.compile(r"\b(?:nodes?|ranks?) (?:says?|said|hears?|heard|knows?|knew|owes?|owed)\b")


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of a module with their lines, those of attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield node.lineno, node.value.value


def found_in(path: Path) -> Iterator[str]:
    """Complaints about a file."""
    text = path.read_text(encoding="utf-8")
    for line, said in docstrings(ast.parse(text)):
        if OPENING.match(said.lstrip()):
            yield f"{path.relative_to(ROOT)}:{line}: opens with a question: {said[:60]!r}"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        words = token.type in (tokenize.STRING, tokenize.COMMENT)
        if words and (talk := TALK.search(token.string)):
            yield f"{path.relative_to(ROOT)}:{token.start[0]}: {talk[0]!r}"


def main(folders: list[str]) -> int:
    """Prints complaints; 0 where there are none."""
    paths = [p for folder in folders or FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]
    complaints = [one for path in paths if path != Path(__file__) for one in found_in(path)]
    print("\n".join(complaints) or f"{len(paths)} files: no question opens a docstring")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
