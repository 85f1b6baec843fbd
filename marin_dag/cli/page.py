"""page: the command that serves the page of page_server.py."""

import contextlib
import threading

from marin_dag.cli.page_content import PageContent
from marin_dag.cli.session import NOTHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError
from marin_dag.store.store import StoreError


@command(
    "page [--port N]",
    "serve the page of a run: its graph, curves, alarms and logs, and buttons to stop, save, publish or profile",
    "--set --port",
)
def page(session: Session) -> int:
    from marin_dag.cli.page_server import HOST, PageServer  # slow to import
    from marin_dag.cli.watched import Watched

    plan = session.plan()  # raises errors of the store or the recipe before there is a page
    watched, port = Watched(session.pipeline, plan, session.store), session.parsed.port
    make_content = session.options.page_content
    content = PageContent() if make_content is None else make_content(session, plan.graph)
    try:
        server = PageServer(watched, port, content)
    except OSError as error:
        raise UserError(f"page: port {port} of {HOST}: {error.strerror}; give another one with --port.") from None
    with server:
        print(f"page       {server.address}")
        print(f"elsewhere  ssh -N -L {server.server_port}:{HOST}:{server.server_port} HOST, then the same address")
        print("Ctrl-C closes the page; runs continue", flush=True)
        # Before a browser asks for them; it is the page that shows an error of the store.
        threading.Thread(target=_read_values, args=(content,), daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("the page is closed; runs continue")
    return NOTHING_WOULD_RUN


def _read_values(content: PageContent) -> None:
    with contextlib.suppress(StoreError, OSError, UserError):
        content.values(None, None)
