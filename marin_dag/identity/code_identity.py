"""Code identity: policy, version, packages and fingerprint of a step's code."""

import socket
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from marin_dag.code.audit import CodeChangedError
from marin_dag.code.fingerprint import closure_of
from marin_dag.code.sources import CodeError

Policy = Literal["tracked", "versioned"]


class CodeIdentity(NamedTuple):
    """The code of a step, as far as it is identity or recorded."""

    policy: Policy
    version: str | None
    packages: dict[str, str]
    fingerprint: str
    definitions: dict[str, str]
    """Qualified name to hash, of every definition reached."""
    opaque: tuple[str, ...]
    """Code that the reading could not follow: a change behind it goes unseen."""
    counts_as: str = ""
    """The fingerprint that counts in the digest of a tracked step, where a user accepted that both make the same."""

    def document(self) -> dict[str, Any]:
        """Return the code as stored with an output. The steps of one kind share its parts: do not change them."""
        document = {**self._asdict(), "opaque": list(self.opaque)}
        if not self.counts_as:
            del document["counts_as"]
        return document


def code_of(
    function: Any, config: BaseModel, *, policy: Policy, version: str | None, packages: tuple[str, ...]
) -> CodeIdentity:
    """Return the code identity of a step: its function's closure, and that of the classes of its config's values."""
    closure = closure_of(function, config)
    versions = {name: package_version(name, function.__name__) for name in sorted(packages)}
    return CodeIdentity(policy, version, versions, *closure)


@cache
def package_version(package: str, kind: str) -> str:
    import importlib.metadata  # slow, and few kinds name a package

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise CodeError(
            f"@step {kind}: package {package!r} is not installed, so its version cannot enter the identity; install "
            "it, or correct `packages=`."
        ) from None


def check_packages(name: str, identity: dict[str, Any]) -> None:
    """Raise CodeChangedError if a package that the step names has another version here than where it was planned."""
    import importlib.metadata

    for package, planned in identity["code"]["packages"].items():
        try:
            here = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            here = "not installed"
        if here != planned:
            raise CodeChangedError(
                f"{name}: package {package} is {here} on {socket.gethostname()}, and {planned} where the run was "
                "planned; the version is part of the step's identity. Install the same on every machine."
            )
