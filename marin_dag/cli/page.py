"""page: the command that serves the page of page_server.py."""

from marin_dag.cli.page_content import PageContent
from marin_dag.cli.session import NOTHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError


@command(
    "page [--port N]",
    "serve the page of a run: its graph, curves, alarms and logs, and buttons to stop, save, publish or profile",
    "--set",
    "--port",
)
def page(session: Session) -> int:
    """Serve the page of a run: plan, requests and the recipe's content, with buttons that send requests."""
    from marin_dag.cli.page_server import HOST, PageServer  # slow to import
    from marin_dag.cli.watched import Watched

    graph = session.plan().graph  # raises errors of the store or the recipe before there is a page
    watched, port = Watched(session.pipeline, graph, session.store), session.parsed.port
    make_content = session.options.page_content
    content = PageContent() if make_content is None else make_content(session, graph)
    try:
        server = PageServer(watched, port, content)
    except OSError as error:
        raise UserError(f"page: port {port} of {HOST}: {error.strerror}; give another one with --port.") from None
    with server:
        print(f"page       {server.address}")
        print(f"elsewhere  ssh -N -L {server.server_port}:{HOST}:{server.server_port} HOST, then the same address")
        print("Ctrl-C closes the page; runs continue", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("the page is closed; runs continue")
    return NOTHING_WOULD_RUN
