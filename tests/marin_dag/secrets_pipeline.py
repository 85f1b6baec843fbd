"""A pipeline that is full of secrets: in its config, its environment, its arguments, its output, its errors."""

import os
import sys
from typing import Any

from pydantic import BaseModel

from marin_dag.cli.main import main
from marin_dag.graph.step import Runtime, StepContext, step

SECRETS = {
    "user and password": "https://reader:planted-one-111@host/data.bin",
    "token as user": "https://planted-two-222@host/data.bin",
    "signed by Google": "https://storage.googleapis.com/b/o?X-Goog-Credential=planted-three&X-Goog-Signature=planted333",
    "signed by Azure": "https://account.blob.core.windows.net/c/o?se=2026&sp=r&sig=planted%2Bfour",
    "signed by Amazon": "https://b.s3.amazonaws.com/o?X-Amz-Security-Token=planted-five&X-Amz-Signature=planted555",
    "token of a query": "https://host/data?token=planted-six-666",
    "header": "Authorization: Bearer planted-seven-777",
    "other header": "{'Authorization': 'token planted-eight-888', 'Cookie': 'session=planted-nine'}",
    "key and value": "aws_secret_access_key = planted-ten-1010",
    "database": "postgres://app:planted-eleven@db/prod",
}


class Config(BaseModel, frozen=True, extra="forbid"):
    fails: str
    urls: dict[str, str]
    from_environment: str
    password: str
    endpoint: Runtime[str]


class Result(BaseModel, frozen=True, extra="forbid"):
    text: str
    password: str = ""


@step()
def leak(config: Config, context: StepContext) -> Result:
    everything = [*config.urls.values(), config.from_environment, config.password, config.endpoint]
    for secret in everything:
        print(secret)
        print("two pieces: Authorization: Bearer planted-", end="")
        print("twelve-1212")
        context.log.warning("using %s", secret)
    sys.stderr.write("\n".join(everything) + "\n")
    context.progress(1, 2, "files")
    if config.fails == "with an error":
        raise RuntimeError(" and ".join(everything))
    if config.fails == "with a result":
        return Result(text=config.urls["token of a query"])
    if config.fails == "with a field of its result":
        return Result(text="", password=config.password)
    if config.fails == "with a shard":
        context.map(shard, [1], in_flight=1)
    return Result(text="fine")


def shard(item: int, folder: str) -> dict[str, Any]:
    return {"where": SECRETS["user and password"]}


ENDINGS = ("not at all", "with an error", "with a result", "with a field of its result", "with a shard")


def build(parsed: Any) -> list[Any]:
    config = Config(
        fails="not at all",
        urls=SECRETS,
        from_environment=f"the key {os.environ['SERVICE_KEY']} of the service",
        password="planted-thirteen",
        endpoint="https://reader:planted-fourteen@host",
    )
    return [leak(ending.replace(" ", "-"), config.model_copy(update={"fails": ending})) for ending in ENDINGS]


if __name__ == "__main__":
    sys.exit(main(build, name="secrets"))
