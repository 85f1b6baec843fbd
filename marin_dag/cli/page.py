"""page: a page in the browser of this machine with running steps, their progress, and buttons for requests.

It shows what `plan` and `tell` show, and its buttons do what `tell` does. To close it stops nothing.
"""

import argparse
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError

PORT, MAX_PORT = 8790, 65535


def _page(session: Session) -> int:
    from marin_dag.cli.page_server import HOST, PageServer
    from marin_dag.cli.watched import Watched

    graph = session.plan().graph  # raises errors of the store or the recipe before there is a page
    watched = Watched(session.pipeline, graph, session.store)
    port = session.parsed.port
    try:
        server = PageServer(watched, port)
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


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port; give a number up to {MAX_PORT}, or 0 for any free one"
        )
    return int(text)


def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--port", type=_port, default=PORT, metavar="N", help=f"port of this machine (default {PORT}; 0: any free one)"
    )


COMMAND = Command(
    "page",
    "[--port N]",
    "serve a page for the browser: running steps, and buttons to stop, save, publish or profile",
    _page,
    add_arguments=_add_arguments,
    options=("--set",),
)
