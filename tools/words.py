"""Refuses indirect questions as subjects, and nodes that talk.

    .venv/bin/python tools/words.py [FOLDER_OR_PAGE...]

A sentence starts with a verb or with the thing itself ("Returns ...", "The longest wait ..."). It
starts with What, Whether, Who, How, Which, Why or Whose only if it is a question, and with Where
only if it is a condition ("Where nodes differ, ..."). This holds for docstrings, comments and
pages, without code blocks, tables and headings. Nodes, ranks and processes do not say, hear, know,
owe, tell or die: they send, receive, hold, report, fail.
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
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/NOTES.md", "docs/*.md")
ITEM = r"(?:[-*]|\d+\.)\s"
BEGIN = rf"(?:^|(?<=[.!?])\s|\n\s*\n|\n(?=\s*{ITEM}))\s*(?:{ITEM}\s*)?"
SENTENCE = re.compile(rf"{BEGIN}([^.!?]+[.!?]?)")
QUESTION = re.compile(r"(?:What|Whether|Who|How|Which|Why|Whose)\b[^?]*$|Where\b[^,?]*$")
BEHIND_COLON = re.compile(r"[^:\n]+: (?:what|whether|who|which|why|whose)\b")
TALK = re.compile(
    r"\b(?:nodes?|ranks?|process(?:es)?) (?:(?:has|have|had|may|will) )?"
    r"(?:says?|said|hears?|heard|knows?|knew|owes?|owed|tells?|told|dies?|died)\b"
)
CODE = re.compile(r"^```.*?^```|^\|.*?$|^#.*?$|``.*?``|`.*?`", re.MULTILINE | re.DOTALL)


def questions(text: str) -> Iterator[tuple[int, str]]:
    """Sentences that start with an indirect question, with their lines from 0 on."""
    for found in SENTENCE.finditer(text):
        if QUESTION.match(found[1]):
            yield text.count("\n", 0, found.start(1)), " ".join(found[1].split())[:70]


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of a module with their lines, those of attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield node.lineno, node.value.value


def comments(tokens: list[tokenize.TokenInfo]) -> Iterator[tuple[int, str]]:
    """Comments with their lines; those on lines after each other are joined."""
    begin, lines = 0, []
    for token in tokens:
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != begin + len(lines):
                yield begin, "\n".join(lines)
                lines = []
            begin = begin if lines else token.start[0]
            lines.append(token.string.lstrip("# "))
    yield begin, "\n".join(lines)


def found_in_python(path: Path) -> Iterator[tuple[int, str]]:
    """Complaints about a program, with their lines."""
    text = path.read_text(encoding="utf-8")
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for line, said in docstrings(ast.parse(text)):
        if BEHIND_COLON.match(said):
            yield line, f"opens with a question: {said[:70]!r}"
        yield from ((line + k, f"question: {x!r}") for k, x in questions(said))
    for line, said in comments(tokens):
        yield from ((line + k, f"question: {x!r}") for k, x in questions(said))
    for token in tokens:
        words = token.type in (tokenize.STRING, tokenize.COMMENT)
        if words and (talk := TALK.search(token.string)):
            yield token.start[0], repr(talk[0])


def found_in_page(path: Path) -> Iterator[tuple[int, str]]:
    """Complaints about a page, with their lines."""
    text = path.read_text(encoding="utf-8")
    prose = CODE.sub(lambda code: re.sub(r"[^\n]", "_", code[0]), text)
    yield from ((1 + k, f"question: {x!r}") for k, x in questions(prose))
    for talk in TALK.finditer(prose):
        yield 1 + prose.count("\n", 0, talk.start()), repr(talk[0])


def main(names: list[str]) -> int:
    """Prints complaints; 0 where there are none."""
    paths = [path for name in names or (*FOLDERS, *PAGES) for path in sorted(ROOT.glob(name))]
    paths = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    complaints = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in sorted(paths)
        if path != Path(__file__)
        for line, words in (found_in_python if path.suffix == ".py" else found_in_page)(path)
    ]
    print("\n".join(complaints) or f"{len(paths)} files: plain words")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
