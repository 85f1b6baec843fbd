"""plan: the same as --dry-run."""

from marin_dag.cli.run import dry_run
from marin_dag.cli.session import SELECTION, Command, Session


def _plan(session: Session) -> int:
    return dry_run(session, session.plan())


COMMAND = Command(
    "plan",
    "[--json]",
    "show what would run, why, and what it costs; the same as --dry-run",
    _plan,
    options=("--dry-run", "--set", "--json", "--every-step", "--copy-to", *SELECTION),
)
