"""The sentence for nodes that disagree: the place, the values, and the remedy."""

from __future__ import annotations

from typing import Any


def first_difference(by_name: dict[str, Any]) -> str:
    """Describes in one sentence where nodes differ from the value that most of them hold.

    Args:
        by_name: each node's next call and its facts, by the node's name.
    """
    nodes, everyone = list(by_name), list(by_name.values())
    actions = [what for what, _ in everyone]
    usual = max(actions, key=actions.count)
    if any(what != usual for what in actions):
        pairs = zip(nodes, actions, strict=True)
        where = ", ".join(f"{node} is about to {what}" for node, what in pairs)
        return (
            f"The nodes are at different places in the program: {where}. All nodes must make the "
            "same calls in the same order."
        )
    tables = [dict(facts) for _, facts in everyone]
    names: list[str] = []
    for table in tables:
        names += [name for name in table if name not in names]
    for name in names:
        values = [table.get(name, "absent") for table in tables]
        usual = max(values, key=values.count)
        odd = [pair for pair in zip(nodes, values, strict=True) if pair[1] != usual]
        if odd:
            said = "; ".join(f"{node} has {_short(value)}" for node, value in odd)
            hint = (
                "Give all nodes the same values with jdaso.broadcast(tree, session)."
                if name.startswith("bits of")
                else "All nodes must be given the same value."
            )
            return f"The nodes disagree on {name}: {said}, the others {_short(usual)}. {hint}"
    return "The nodes disagree, but on no named value."


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + " ..."
