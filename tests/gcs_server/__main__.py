"""The fake Cloud Storage as a process: prints its URL and serves until its standard input ends."""

import argparse
import sys

from tests.gcs_server.control import GcsControl
from tests.gcs_server.server import GcsServer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gcs_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 (the default) takes a free one")
    parser.add_argument("--latency-seconds", type=float, default=0.0, help="added to each request")
    parser.add_argument("--bucket", action="append", default=[], help="a bucket to begin with; may be repeated")
    parsed = parser.parse_args()
    with GcsServer(port=parsed.port, latency_seconds=parsed.latency_seconds) as server:
        for bucket in parsed.bucket:
            GcsControl(server.url).make_bucket(bucket)
        print(server.url, flush=True)
        try:
            sys.stdin.read()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
