"""Architecture diagram as SVG, drawn from the imports in the code. Each arrow is at least one import.

Transitive imports are not drawn: if A imports B and B imports C, there is no arrow from A to C.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOMS = (
    "podium", "cluster", "training", "evaluation", "serving.app", "serving.deployments", "serving.api", "serving.batches",
    "serving.store", "serving.accounts", "serving.database", "serving.pool", "serving.dispatch", "serving.workers", "serving.settings",
    "conductor.run", "conductor.plan", "conductor.model",
)  # fmt: skip
"""Packages that get a box."""
WIDTH, HEIGHT, GAP_X, GAP_Y = 170, 34, 26, 44
Edges = Mapping[str, set[str]]
STYLE = (
    "text{font:14px sans-serif;fill:#1b1f24}rect{fill:#eef3fb;stroke:#4a6fa5}path{stroke:#8a94a3;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e9ee}rect{fill:#233047;stroke:#7fa3dc}}"
)


def draw_architecture(root: Path) -> str:
    """Render the SVG."""
    edges = reduce_edges(read_edges(root))
    rows = layers(edges)
    width = GAP_X + max(len(rooms) for rooms in rows) * (WIDTH + GAP_X)
    places = {
        room: (
            (width - len(rooms) * (WIDTH + GAP_X) + GAP_X) / 2 + column * (WIDTH + GAP_X),
            GAP_Y / 2 + row * (HEIGHT + GAP_Y),
        )
        for row, rooms in enumerate(rows)
        for column, room in enumerate(rooms)
    }
    height = len(rows) * (HEIGHT + GAP_Y)
    arrows = [_arrow(places[room], places[other]) for room in edges for other in sorted(edges[room])]
    boxes = [_box(room, *place) for room, place in places.items()]
    head = '<defs><marker id="m" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" style="fill:#8a94a3"/></marker></defs>'
    title = "<title>Podium's packages; an arrow is an import</title>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img">{title}<style>{STYLE}</style>{head}'
        + "".join([*arrows, *boxes])
        + "</svg>\n"
    )


def read_edges(root: Path) -> dict[str, set[str]]:
    """Map each room to the rooms it imports, at module level or inside functions."""
    edges: dict[str, set[str]] = {room: set() for room in ROOMS}
    for package in dict.fromkeys(room.partition(".")[0] for room in ROOMS):
        for file in (root / package).rglob("*.py"):
            module = ".".join(file.relative_to(root).with_suffix("").parts)
            room = _room(module)
            if room:
                edges[room] |= {
                    target for each in _imports(file) if (target := _room(each)) and target != room
                }
    return edges


def reduce_edges(edges: Edges) -> dict[str, set[str]]:
    """Remove edges that follow from others (transitive reduction)."""
    return {
        room: {to for to in targets if not any(to in _reach(edges, other) for other in targets - {to})}
        for room, targets in edges.items()
    }


def layers(edges: Edges) -> list[list[str]]:
    """Arrange the rooms in rows, each above everything it imports."""
    depth: dict[str, int] = {}

    def depth_of(room: str) -> int:
        if room not in depth:
            depth[room] = 1 + max(map(depth_of, edges[room]), default=-1)
        return depth[room]

    most = max(map(depth_of, edges))
    return [[room for room in ROOMS if depth[room] == row] for row in range(most, -1, -1)]


def _reach(edges: Edges, start: str) -> set[str]:
    reached, waiting = set[str](), [start]
    while waiting:
        for to in edges[waiting.pop()] - reached:
            reached.add(to)
            waiting.append(to)
    return reached


def _imports(file: Path) -> Iterable[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def _room(module: str) -> str | None:
    return next((room for room in ROOMS if module == room or module.startswith(f"{room}.")), None)


def _box(room: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{x + WIDTH / 2}" y="{y + HEIGHT / 2 + 5}" text-anchor="middle">{room}</text>'
    )


def _arrow(here: tuple[float, float], there: tuple[float, float]) -> str:
    x1, y1 = here[0] + WIDTH / 2, here[1] + HEIGHT
    x2, y2 = there[0] + WIDTH / 2, there[1]
    middle = (y1 + y2) / 2
    return f'<path marker-end="url(#m)" d="M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}"/>'
