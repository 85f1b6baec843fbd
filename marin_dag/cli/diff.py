"""diff A [B]: config fields, inputs down to the root, and the source of what changed, from A to B."""

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Records
from marin_dag.plan.compare import Side, compare, newest_made, of_record, of_step, record_named


def _diff(session: Session) -> int:
    names = session.parsed.names
    graph = session.graph()
    records = Records(session.store)
    if len(names) == 1:
        old, new = _last_commit(graph.step(names[0]).name, records), of_step(graph.step(names[0]))
    else:
        old, new = (_side(text, graph, records) for text in names)
    for line in compare(old, new, graph, session.store):
        print(line)
    return NOTHING_WOULD_RUN


def _side(text: str, graph: Graph, records: Records) -> Side:
    record = record_named(records, graph, text)
    return of_step(graph.step(text)) if record is None else of_record(record)


def _last_commit(name: str, records: Records) -> Side:
    made = newest_made(records, name)
    if made is None:
        raise UserError(f"diff {name}: nothing was ever made under this name; name a second step to compare with.")
    return of_record(records.get(made))


COMMAND = Command(
    "diff",
    "A [B]",
    "what differs between two steps or digests; without B, STEP now from its last output",
    _diff,
    1,
    2,
    options=("--set",),
)
