"""Key-value store: TensorStore's spec of a folder, on a local disk, on Cloud Storage or on S3."""

import os
from pathlib import Path
from typing import Any


def key_value_store(folder: str) -> dict[str, Any]:
    """Return the spec of the folder's driver; keys lie directly below `path`.

    Raises:
        ValueError: it is a URL of another kind.
    """
    scheme, separator, rest = folder.partition("://")
    if not separator:
        return {"driver": "file", "path": f"{Path(folder).absolute()}/"}
    if scheme == "file":
        return {"driver": "file", "path": rest.rstrip("/") + "/"}
    bucket, _, key = rest.partition("/")
    path = f"{key.rstrip('/')}/" if key.strip("/") else ""
    if scheme == "gs":
        if os.environ.get("STORAGE_EMULATOR_HOST"):
            # A stand-in asks for no credentials. TensorStore would look for them and print an error.
            os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
        return {"driver": "gcs", "bucket": bucket, "path": path}
    if scheme == "s3":
        # TensorStore finds credentials where AWS's own tools do, but does not read these two variables.
        named = {"endpoint": os.environ.get("AWS_ENDPOINT_URL"), "aws_region": os.environ.get("AWS_DEFAULT_REGION")}
        given = {name: value for name, value in named.items() if value}
        return {"driver": "s3", "bucket": bucket, "path": path, **given}
    raise ValueError(
        f"{folder}: arrays are stored in a local folder, under gs:// or under s3://, not under {scheme}://; use a "
        "prefix of one of these."
    )
