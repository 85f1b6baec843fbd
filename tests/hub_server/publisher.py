"""Publishes revisions again and again, each time in a process of its own, whose id it prints for its killer.

    python -m tests.hub_server.publisher REPO ENDPOINT FOLDER

Each folder in FOLDER is a revision. It starts a process for each line of its input, and prints how that ended.
"""

import os
import sys
from pathlib import Path

from runtime.interop.hub_repository import HubRepository
from runtime.interop.revisions import Revision, RevisionFile


def publish(repo: str, endpoint: str, folder: Path) -> None:
    target = HubRepository(repo, endpoint=endpoint)
    for path in sorted(folder.iterdir()):
        files = {file.name: RevisionFile.of(file) for file in path.iterdir()}
        target.write(Revision(path.name, path.name, files), print)


def main() -> None:
    repo, endpoint, folder = sys.argv[1:]
    HubRepository(repo)  # imports the client once for all processes
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            publish(repo, endpoint, Path(folder))
            os._exit(0)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
