"""Objects: the semantics of Cloud Storage without HTTP: buckets, generations, preconditions, listings.

One lock makes each check and the change that depends on it atomic. A stored object never changes, so its readers need
no lock. The semantics are those of the public documentation: "Request preconditions", "Objects: insert",
"Objects: list", "Objects: rewrite", "Objects: compose", "Cloud Storage consistency".
"""

import base64
import bisect
import dataclasses
import datetime
import functools
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import google_crc32c

WRITABLE_FIELDS = ("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "customTime", "metadata")
MOST_SOURCES_OF_A_COMPOSE = 32
MOST_RESULTS_OF_A_PAGE = 1000


class ApiError(Exception):
    """An error of the API."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


def not_found(what: str) -> ApiError:
    return ApiError(404, "notFound", f"No such object: {what}")


def invalid(message: str) -> ApiError:
    return ApiError(400, "invalid", message)


@dataclasses.dataclass(frozen=True)
class StoredObject:
    """A generation of an object, at one metageneration."""

    bucket: str
    name: str
    data: bytes
    generation: int
    metageneration: int
    created: datetime.datetime
    updated: datetime.datetime
    content_type: str
    fields: Mapping[str, Any]
    num_components: int | None = None

    @functools.cached_property
    def crc32c(self) -> str:
        return base64.b64encode(google_crc32c.Checksum(self.data).digest()).decode()

    @functools.cached_property
    def md5(self) -> str | None:
        """MD5 of the object; None for a composed object, as in Cloud Storage."""
        if self.num_components is not None:
            return None
        return base64.b64encode(hashlib.md5(self.data).digest()).decode()

    @property
    def etag(self) -> str:
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()

    @functools.cached_property
    def resource(self) -> dict[str, Any]:
        """Return the object resource of the JSON API, where 64-bit numbers are strings."""
        found: dict[str, Any] = {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "contentType": self.content_type,
            "storageClass": "STANDARD",
            "size": str(len(self.data)),
            "crc32c": self.crc32c,
            "etag": self.etag,
            "timeCreated": rfc3339(self.created),
            "updated": rfc3339(self.updated),
            "timeStorageClassUpdated": rfc3339(self.created),
            **self.fields,
        }
        if self.md5 is not None:
            found["md5Hash"] = self.md5
        if self.num_components is not None:
            found["componentCount"] = self.num_components
        return found

    @functools.cached_property
    def resource_json(self) -> str:
        return json.dumps(self.resource)


class Preconditions(NamedTuple):
    """Preconditions of a request; None for absent ones."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, Any], source: str = "") -> "Preconditions":
        """Return the preconditions in a query; `source="Source"` for those on the source of a copy."""
        names = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")
        return cls(*(_number(query, f"if{source}{name}") for name in names))

    def check(self, found: StoredObject | None) -> None:
        """Raise 412 if a match fails, 304 if a not-match does. Generation 0 means no live object."""
        generation = 0 if found is None else found.generation
        metageneration = None if found is None else found.metageneration
        if self.generation not in (None, generation) or self.metageneration not in (None, metageneration):
            raise ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        # "If no live object exists, the precondition fails."
        if self.not_generation is not None and (found is None or self.not_generation == generation):
            raise ApiError(304, "notModified", "Not Modified")
        if self.not_metageneration is not None and (found is None or self.not_metageneration == metageneration):
            raise ApiError(304, "notModified", "Not Modified")


class Page(NamedTuple):
    """A page of a listing."""

    objects: list[StoredObject]
    prefixes: list[str]
    next_token: str | None


class Objects:
    """All buckets and their objects."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._live: dict[str, dict[str, StoredObject]] = {}
        self._names: dict[str, list[str]] = {}
        self._last_generation = 0

    def make_bucket(self, name: str) -> None:
        with self._lock:
            if name in self._live:
                raise ApiError(409, "conflict", "Your previous request to create the named bucket succeeded.")
            self._live[name], self._names[name] = {}, []

    def delete_bucket(self, name: str) -> None:
        with self._lock:
            if self._bucket(name):
                raise ApiError(409, "conflict", "The bucket you tried to delete is not empty.")
            del self._live[name], self._names[name]

    def buckets(self) -> list[str]:
        with self._lock:
            return sorted(self._live)

    def require_bucket(self, name: str) -> None:
        with self._lock:
            self._bucket(name)

    def get(self, bucket: str, name: str, preconditions: Preconditions, generation: int | None = None) -> StoredObject:
        with self._lock:
            found = self._bucket(bucket).get(name)
            if found is None or generation not in (None, found.generation):
                raise not_found(f"{bucket}/{name}")
            preconditions.check(found)
            return found

    def check(self, bucket: str, name: str, preconditions: Preconditions) -> None:
        """Raise as an upload with these preconditions would."""
        with self._lock:
            preconditions.check(self._bucket(bucket).get(name))

    def insert(
        self,
        bucket: str,
        name: str,
        data: bytes,
        preconditions: Preconditions,
        *,
        content_type: str | None = None,
        fields: Mapping[str, Any] | None = None,
        num_components: int | None = None,
        expected: Mapping[str, str] | None = None,
    ) -> StoredObject:
        """Create the object whole, or not at all; `expected` has the client's crc32c and md5Hash."""
        if not name or len(name.encode()) > 1024 or "\r" in name or "\n" in name:
            raise invalid(f"Invalid object name {name!r}")
        now = datetime.datetime.now(datetime.UTC)
        new = StoredObject(
            bucket, name, data, 0, 1, now, now, content_type or "application/octet-stream", fields or {}, num_components
        )
        for which, found in (("crc32c", new.crc32c), ("md5Hash", new.md5)):
            wanted = (expected or {}).get(which)
            if wanted is not None and found is not None and wanted != found:
                raise invalid(f"Provided {which} {wanted!r} doesn't match calculated {which} {found!r}.")
        with self._lock:
            objects = self._bucket(bucket)
            preconditions.check(objects.get(name))
            return self._put(dataclasses.replace(new, generation=self._next_generation()))

    def delete(self, bucket: str, name: str, preconditions: Preconditions, generation: int | None = None) -> None:
        with self._lock:
            self.get(bucket, name, preconditions, generation)
            del self._live[bucket][name]
            names = self._names[bucket]
            del names[bisect.bisect_left(names, name)]

    def patch(
        self, bucket: str, name: str, changes: Mapping[str, Any], preconditions: Preconditions, *, replace: bool
    ) -> StoredObject:
        """Change the metadata: the generation stays, the metageneration grows."""
        with self._lock:
            old = self.get(bucket, name, preconditions)
            fields = {} if replace else dict(old.fields)
            for field in WRITABLE_FIELDS:
                if field not in changes:
                    continue
                if field == "metadata" and changes[field] is not None and not replace:
                    merged = {**fields.get("metadata", {}), **changes[field]}
                    fields[field] = {key: value for key, value in merged.items() if value is not None}
                else:
                    fields[field] = changes[field]
            fields = {field: value for field, value in fields.items() if value is not None}
            new = dataclasses.replace(
                old,
                metageneration=old.metageneration + 1,
                updated=datetime.datetime.now(datetime.UTC),
                content_type=changes.get("contentType", old.content_type),
                fields=fields,
            )
            return self._put(new)

    def copy(
        self,
        source: tuple[str, str],
        target: tuple[str, str],
        source_preconditions: Preconditions,
        preconditions: Preconditions,
        *,
        source_generation: int | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> StoredObject:
        with self._lock:
            old = self.get(*source, source_preconditions, source_generation)
            changes = changes or {}
            fields = {field: changes[field] for field in WRITABLE_FIELDS if field in changes} or old.fields
            return self.insert(
                *target,
                old.data,
                preconditions,
                content_type=changes.get("contentType", old.content_type),
                fields=fields,
                num_components=old.num_components,
            )

    def move(
        self,
        bucket: str,
        source: str,
        target: str,
        source_preconditions: Preconditions,
        preconditions: Preconditions,
    ) -> StoredObject:
        with self._lock:
            moved = self.copy((bucket, source), (bucket, target), source_preconditions, preconditions)
            if source != target:
                self.delete(bucket, source, Preconditions())
            return moved

    def compose(
        self,
        bucket: str,
        target: str,
        sources: list[Mapping[str, Any]],
        destination: Mapping[str, Any],
        preconditions: Preconditions,
    ) -> StoredObject:
        if not 1 <= len(sources) <= MOST_SOURCES_OF_A_COMPOSE:
            raise invalid(f"The number of source components provided ({len(sources)}) is not between 1 and 32.")
        with self._lock:
            found = []
            for source in sources:
                demanded = Preconditions.of(source.get("objectPreconditions", {}))
                found.append(self.get(bucket, source["name"], demanded, _number(source, "generation")))
            return self.insert(
                bucket,
                target,
                b"".join(each.data for each in found),
                preconditions,
                content_type=destination.get("contentType"),
                fields={field: destination[field] for field in WRITABLE_FIELDS if field in destination},
                num_components=sum(each.num_components or 1 for each in found),
            )

    def list(self, bucket: str, query: Mapping[str, str]) -> Page:
        """Return a page; `query` has prefix, delimiter, startOffset, endOffset, maxResults and pageToken."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        most = min(_number(query, "maxResults") or MOST_RESULTS_OF_A_PAGE, MOST_RESULTS_OF_A_PAGE)
        token = query.get("pageToken")
        last = _from_token(token) if token else None
        with self._lock:
            objects = self._bucket(bucket)
            page = Page([], [], None)
            for name, group in self._walk(bucket, prefix, delimiter, query, last):
                if len(page.objects) + len(page.prefixes) == most:
                    return page._replace(next_token=_to_token(last or ""))
                last = name if group is None else group
                if group is not None:
                    page.prefixes.append(group)
                if group is None or (query.get("includeTrailingDelimiter") == "true" and name == group):
                    page.objects.append(objects[name])
            return page

    def _walk(
        self, bucket: str, prefix: str, delimiter: str, query: Mapping[str, str], last: str | None
    ) -> Iterator[tuple[str, str | None]]:
        """Yield names in order, or the first name of each group of `delimiter` with the group."""
        names = self._names[bucket]
        end = query.get("endOffset")
        index = bisect.bisect_left(names, max(prefix, query.get("startOffset", "")))
        if last is not None:
            is_group = bool(delimiter) and last.endswith(delimiter)
            index = max(index, bisect.bisect_left(names, _after_all(last)) if is_group else _after(names, last))
        while index < len(names):
            name = names[index]
            if not name.startswith(prefix) or (end and name >= end):
                return
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                yield name, None
                index += 1
            else:
                group = name[: cut + len(delimiter)]
                yield name, group
                index = bisect.bisect_left(names, _after_all(group))

    def _put(self, new: StoredObject) -> StoredObject:
        if new.name not in self._live[new.bucket]:
            bisect.insort(self._names[new.bucket], new.name)
        self._live[new.bucket][new.name] = new
        return new

    def _bucket(self, name: str) -> dict[str, StoredObject]:
        if name not in self._live:
            raise ApiError(404, "notFound", "The specified bucket does not exist.")
        return self._live[name]

    def _next_generation(self) -> int:
        self._last_generation = max(time.time_ns() // 1000, self._last_generation + 1)
        return self._last_generation


def rfc3339(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _number(values: Mapping[str, Any], name: str) -> int | None:
    if values.get(name) in (None, ""):
        return None
    try:
        return int(values[name])
    except ValueError:
        raise invalid(f"Invalid value for {name}: {values[name]!r}") from None


def _after(names: list[str], name: str) -> int:
    return bisect.bisect_right(names, name)


def _after_all(group: str) -> str:
    """Return the first name after all that begin with `group`."""
    return group[:-1] + chr(ord(group[-1]) + 1)


def _to_token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _from_token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except ValueError:
        raise invalid(f"Invalid pageToken {token!r}") from None
