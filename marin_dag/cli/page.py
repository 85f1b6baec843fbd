"""page: what runs, how far it is, and buttons to stop, save, publish or profile, in the browser of this machine.

It shows what `plan` and `tell` know, and a button does what `tell` does; closing it stops nothing.
"""

import argparse
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError

PORT, MAX_PORT = 8790, 65535


def _page(session: Session) -> int:
    from marin_dag.cli.page_server import HOST, PageServer
    from marin_dag.cli.watched import Watched

    graph = session.plan().graph  # what is wrong with the store or the recipe is said here, before there is a page
    watched = Watched(session.pipeline, graph, session.store)
    port = session.parsed.port
    try:
        server = PageServer(watched, port)
    except OSError as error:
        raise UserError(f"page: port {port} of {HOST}: {error.strerror}; give another one with --port.") from None
    with server:
        print(f"page       {server.address}")
        print(f"elsewhere  ssh -N -L {server.server_port}:{HOST}:{server.server_port} HOST, then the same address")
        print("Ctrl-C closes the page, and stops nothing that runs", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("the page is closed; what runs goes on")
    return NOTHING_WOULD_RUN


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; write a number up to {MAX_PORT}, 0 for any free one")
    return int(text)


def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--port",
        type=_port,
        default=PORT,
        metavar="N",
        help=f"(page) of this machine (default {PORT}); 0: any free one",
    )


COMMAND = Command(
    "page",
    "[--port N]",
    "a page in the browser: what runs, how far it is, buttons to stop, save, publish or profile",
    _page,
    add_arguments=_add_arguments,
    options=("--set",),
    advice={"--dry-run": "it starts no step, and only its buttons tell one anything; leave --dry-run out"},
)
