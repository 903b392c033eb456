"""Random tree ensembles as attributes of ONNX nodes, and data for them; seeded."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ml_case import Array

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


@dataclass
class Trees:
    """What random ensembles look like; `numbers` is how many thresholds there are to choose from."""

    seed: int
    trees: int = 5
    depth: int = 4
    features: int = 3
    targets: int = 1
    modes: tuple[str, ...] = ("BRANCH_LEQ",)
    missing: bool = False
    numbers: int = 8
    per_leaf: tuple[int, int] = (1, 1)
    positive: bool = False
    only: int | None = None  # the one target that leaves give anything to


def attributes(what: Trees, kind: str) -> dict[str, Any]:
    """Return the attributes of opsets 1 to 3; `kind` is class or target."""
    random = np.random.default_rng(what.seed)
    nodes: list[tuple[int, int, int, float, str, int, int, int]] = []
    entries: list[tuple[int, int, int, float]] = []

    def leaf(tree: int, number: int) -> None:
        nodes.append((tree, number, 0, 0.0, "LEAF", 0, 0, 0))
        count = int(random.integers(what.per_leaf[0], what.per_leaf[1] + 1))
        targets = [what.only] if what.only is not None else random.permutation(what.targets)[:count].tolist()
        for target in targets:
            weight = float(np.float32(random.uniform(0 if what.positive else -1, 1)))
            entries.append((tree, number, int(target), weight))

    for tree in range(what.trees):
        following, waiting = 1, [(0, 0)]
        while waiting:
            number, level = waiting.pop()
            if level == what.depth or (level and random.random() < 0.25):
                leaf(tree, number)
                continue
            true, false, following = following, following + 1, following + 2
            value = float(random.integers(0, what.numbers)) / 2 - what.numbers / 4
            feature, mode = int(random.integers(what.features)), str(random.choice(what.modes))
            tracks = int(what.missing and random.random() < 0.5)
            nodes.append((tree, number, feature, value, mode, true, false, tracks))
            waiting += [(true, level + 1), (false, level + 1)]
        # The root stands first, the others anywhere.
        own = [n for n in nodes if n[0] == tree]
        rest = [own[k] for k in 1 + random.permutation(len(own) - 1)]
        nodes[len(nodes) - len(own) :] = [own[0], *rest]
    tree_ids, ids, features, values, modes, true_ids, false_ids, missing = zip(*nodes, strict=True)
    found = {
        "nodes_treeids": tree_ids, "nodes_nodeids": ids, "nodes_featureids": features, "nodes_values": values,
        "nodes_modes": modes, "nodes_truenodeids": true_ids, "nodes_falsenodeids": false_ids,
        f"{kind}_treeids": [e[0] for e in entries], f"{kind}_nodeids": [e[1] for e in entries],
        f"{kind}_ids": [e[2] for e in entries], f"{kind}_weights": [e[3] for e in entries],
    }  # fmt: skip
    return {**found, "nodes_missing_value_tracks_true": missing} if what.missing else found


def data(what: Trees, rows: int, dtype: str, *, nan: bool = False) -> Array:
    """Return rows whose numbers often equal a threshold."""
    random = np.random.default_rng(what.seed + 1)
    x = random.integers(-what.numbers, what.numbers, (rows, what.features)) / 2.0
    if dtype.startswith("float"):
        x = np.where(random.random(x.shape) < 0.5, x, x + random.normal(0, 0.1, x.shape))
        if nan:
            x[random.random(x.shape) < 0.2] = np.nan
    return x.astype(dtype)
