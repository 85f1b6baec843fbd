"""why STEP and diff A [B]: what changed, down to the field or function."""

from marin_dag.cli.session import NOTHING_WOULD_RUN, SELECTION, Session, command
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Records
from marin_dag.plan.explain import Side, compare, explain, newest_made, of_record, of_step, record_named


@command("why STEP", "explain STEP's verdict, down to the changed field or function", "--set", *SELECTION)
def why(session: Session) -> int:
    """Print the reasons of the step's verdict, and the commands that publish the milestones it starts from."""
    plan = session.plan(session.step)
    print(explain(plan, session.step, session.store))
    for what, line in session.publish_commands([plan[session.step]]):
        print(f"  {what:<9} {line}")
    return NOTHING_WOULD_RUN


@command("diff A [B]", "what differs between two steps or digests; without B, STEP now from its last output", "--set")
def diff(session: Session) -> int:
    """Print changed config fields, inputs down to the root, and source, from A to B."""
    names, graph, records = session.parsed.names, session.graph(), Records(session.store)
    if len(names) == 1:
        step = graph.step(names[0])
        made = newest_made(records, step.name)
        if made is None:
            raise UserError(
                f"diff {step.name}: no output was made under this name; name a second step to compare with."
            )
        old, new = of_record(records.get(made)), of_step(step)
    else:
        old, new = (_side(text, graph, records) for text in names)
    for line in compare(old, new, graph, session.store):
        print(line)
    return NOTHING_WOULD_RUN


def _side(text: str, graph: Graph, records: Records) -> Side:
    record = record_named(records, graph, text)
    return of_step(graph.step(text)) if record is None else of_record(record)
