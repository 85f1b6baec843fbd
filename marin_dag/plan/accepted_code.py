"""Accepted code of tracked steps: a digest that a user declared equivalent stands for the one of the changed code."""

from collections.abc import Collection

from marin_dag.graph.graph import Graph
from marin_dag.ledger.acceptances import Acceptances
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store


def apply_acceptances(graph: Graph, store: Store, *, without: Collection[str] = ()) -> None:
    """Give each tracked step with accepted code the digest of its earlier output; steps that read it follow.

    A step keeps its own digest if an output of it exists.

    The steps of `graph` change in place; those named in `without` keep their own digest.
    """
    acceptances = Acceptances(store)
    digests: dict[str, dict[str, None]] = {}
    """Fingerprint to the digests for which it was accepted."""
    for digest in acceptances.digests():
        for entry in acceptances.in_force(digest):
            for code in (entry.old_code, entry.new_code):
                digests.setdefault(code, {})[digest] = None
    if not digests:
        return
    committed, moved = Records(store).committed_keys(), set[str]()
    for step in graph.steps:
        is_reset = step.name in without and "counts_as" in step.identity["code"]
        if is_reset or any(item.step.name in moved for _, item in step.inputs):
            step.forget_identity()
            moved.add(step.name)
        if step.policy != "tracked" or step.name in without or step.key in committed:
            continue
        code = step.identity["code"]["fingerprint"]
        for digest in digests.get(code, ()):
            others = acceptances.equivalent(digest, code)
            if any(step.count_as(other, digest) for other in others):
                moved.add(step.name)
                break
