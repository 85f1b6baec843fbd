"""adopt PATH --as NAME: commit data from elsewhere as an output, and print the line for the recipe."""

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.keep.adopt import AdoptedConfig, adopt, adopted
from marin_dag.quantities import counted, in_bytes


def _adopt(session: Session) -> int:
    path, name = session.step, session.parsed.as_
    if not name:
        raise UserError(f"adopt {path}: it needs a name: --as NAME.")
    graph, wanted = session.graph(), None
    if name in graph:
        config = graph.step(name).config
        if not isinstance(config, AdoptedConfig):
            raise UserError(
                f"adopt {path} --as {name}: {name!r} is a step of the recipe that is not adopted. Choose another name."
            )
        wanted = config.content
    adoption = adopt(session.store, path, name, wanted=wanted)
    record = adoption.record
    size = in_bytes(sum(entry.size_in_bytes for entry in record.manifest))
    how = "adopted" if adoption.is_new else f"adopted before, as {record.name}"
    print(f"{name}: {counted(len(record.manifest), 'file')}, {size}, {how}: {session.store.url(record.output_path)}")
    if wanted is None:
        content = adoption.content
        print("in the recipe, with `from marin_dag.keep.adopt import AdoptedConfig, adopted`:")
        print(f'  {adopted.name}("{name}", AdoptedConfig(content="{content}"))')
    return NOTHING_WOULD_RUN


COMMAND = Command(
    "adopt", "PATH --as NAME", "commit data from elsewhere as an output", _adopt, 1, 1, options=("--set", "--as")
)
