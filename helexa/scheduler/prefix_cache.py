"""Blocks by what they hold: a tree whose path from a root is a sequence's tokens, 16 a step. Pure.

KV is a function of the tokens alone, so a block computed for one sequence serves every other that begins alike, bit for bit.
A step down the tree compares the token ids themselves. Roots are told apart by scope and salt, so that nobody finds out by timing
what somebody else has asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from helexa.scheduler.block_pool import BLOCK_SIZE

Tokens = tuple[int, ...]
Root = tuple[str, str]  # (scope, salt)


@dataclass(eq=False, slots=True)
class Node:
    """A full block in the tree; a root has block -1. A dead one was evicted."""

    block: int
    parent: Node | None
    tokens: Tokens
    children: dict[Tokens, Node] = field(default_factory=dict)
    alive: bool = True


class PrefixCache:
    def __init__(self) -> None:
        self._roots: dict[Root, Node] = {}
        self._nodes: dict[int, Node] = {}  # by block

    def root(self, root: Root) -> Node:
        node = self._roots.get(root)
        if node is None:
            node = self._roots[root] = Node(-1, None, ())
        return node

    def match(self, root: Root, tokens: list[int], most_blocks: int) -> list[Node]:
        """The longest chain of at most `most_blocks` cached blocks that `tokens` begins with."""
        node = self._roots.get(root)
        found: list[Node] = []
        while node is not None and len(found) < most_blocks:
            start = len(found) * BLOCK_SIZE
            node = node.children.get(tuple(tokens[start : start + BLOCK_SIZE]))
            if node is not None:
                found.append(node)
        return found

    def insert(self, parent: Node, tokens: Tokens, block: int) -> Node:
        """Registers a full block under its parent; where another block holds the same already, that one's node is returned.
        Under a dead parent nothing is registered."""
        if not parent.alive:
            return parent
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = self._nodes[block] = Node(block, parent, tokens)
        return node

    def holds(self, block: int) -> bool:
        return block in self._nodes

    def evict(self, block: int) -> list[int]:
        """Takes a block out, and those below it, which cannot be reached any more: these are returned."""
        top = self._nodes[block]
        if top.parent is not None:
            del top.parent.children[top.tokens]
            if not top.parent.children and top.parent.parent is None:
                self._roots = {key: node for key, node in self._roots.items() if node is not top.parent}
                top.parent.alive = False
        below: list[int] = []
        stack = [top]
        while stack:
            node = stack.pop()
            node.alive = False
            del self._nodes[node.block]
            if node is not top:
                below.append(node.block)
            stack.extend(node.children.values())
        return below

    def clear(self) -> None:
        """The KV memory is gone."""
        for node in [*self._nodes.values(), *self._roots.values()]:
            node.alive = False
        self._nodes.clear()
        self._roots.clear()

    def __len__(self) -> int:
        return len(self._nodes)

    def blocks(self) -> set[int]:
        return set(self._nodes)
