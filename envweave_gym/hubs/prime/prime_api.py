"""Client of the Prime Environments Hub's HTTP API: search, details, package index and downloads, all with limits.

The API is that of the command ``prime``, and so are the variables ``PRIME_API_BASE_URL`` and ``PRIME_API_KEY``. The key
goes to the API's own origin only. Answers are checked; whatever is wrong with one is a single ``NotAvailable``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode, urljoin, urlsplit

import msgspec

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.core.loopback import is_loopback, is_loopback_url
from envweave_gym.hubs.prime.hub_id import LATEST, HubId, normalised
from envweave_gym.net.http import BodyTooLarge, HttpConnection

DEFAULT_URL = "https://api.primeintellect.ai"
HUB_HOSTS = (".primeintellect.ai",)
"""Ends of the hosts that packages are downloaded from, beside the host of the API."""
MAX_WHEEL_BYTES = 256 << 20
_MAX_ANSWER_BYTES = 8 << 20
_DEADLINE_S, _DOWNLOAD_DEADLINE_S = 30.0, 600.0
_MAX_REDIRECTS = 5
_PREFIX = "/api/v1"
_SHA256 = re.compile(r"sha256=([0-9a-f]{64})")
_T = TypeVar("_T")


class Owner(msgspec.Struct, frozen=True):
    """The owner of an environment."""

    name: str


class Listed(msgspec.Struct, frozen=True):
    """One environment in the answer to a search."""

    name: str
    owner: Owner
    description: str | None = None
    latest_version: str | None = None


class _Page(msgspec.Struct, frozen=True):
    data: list[Listed]
    total_count: int = 0


class _LatestVersion(msgspec.Struct, frozen=True):
    semantic_version: str | None = None
    content_hash: str | None = None


class _Metadata(msgspec.Struct, frozen=True):
    description: str | None = None
    runtime_hint: str | None = None


class Details(msgspec.Struct, frozen=True):
    """Details of one version, from ``GET …/@version``."""

    name: str
    owner: Owner
    semantic_version: str | None = None
    content_hash: str | None = None
    sha256: str | None = None
    runtime_hint: str | None = None
    wheel_url: str | None = None
    simple_index_url: str | None = None
    install_index_url: str | None = None
    latest_version: _LatestVersion | None = None
    metadata: _Metadata | None = None
    url_dependencies: list[str] | None = None

    @property
    def version(self) -> str | None:
        """The version that these details describe."""
        return self.semantic_version or (
            self.latest_version.semantic_version if self.latest_version else None
        )

    @property
    def digest(self) -> str | None:
        """The content hash of this version."""
        return self.content_hash or (self.latest_version.content_hash if self.latest_version else None)

    @property
    def hint(self) -> str | None:
        """The generation of the library that the owner has declared: ``VERIFIERS_V0``, ``VERIFIERS_V1`` or ``None``."""
        return self.runtime_hint or (self.metadata.runtime_hint if self.metadata else None)


class _Version(msgspec.Struct, frozen=True):
    semantic_version: str | None = None


class _Versions(msgspec.Struct, frozen=True):
    versions: list[_Version]


class WheelLink(msgspec.Struct, frozen=True):
    """Where a wheel is, and the hash that the index gives for it."""

    url: str
    filename: str
    sha256: str | None


class PrimeApi:
    """The hub at one address."""

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        given = url or os.environ.get("PRIME_API_BASE_URL") or os.environ.get("PRIME_BASE_URL") or DEFAULT_URL
        self.url = _checked_base(given)
        self._key = os.environ.get("PRIME_API_KEY") if key is None else key

    def search(self, text: str = "", limit: int = 50) -> tuple[list[Listed], int]:
        """Return the environments that match a text, and how many there are in all."""
        query = urlencode({"include_teams": "true", "limit": limit, "offset": 0, "search": text})
        page = self._get(f"/environmentshub/?{query}", _Page, wrapped=False)
        return page.data, page.total_count

    def details(self, hub_id: HubId) -> Details:
        """Return the details of a version, by default the latest; check that they are those of this ID."""
        version = quote(hub_id.version or LATEST, safe="")
        found = self._get(f"/environmentshub/{hub_id.owner}/{hub_id.name}/@{version}", Details, hub_id=hub_id)
        theirs = f"{found.owner.name}/{found.name}"
        if (found.owner.name.lower(), normalised(found.name)) != (hub_id.owner.lower(), hub_id.distribution):
            raise NotAvailable(
                f"{self.url} answers the request for {hub_id.path} with {shown(theirs)}; not used"
            )
        wanted = hub_id.version
        is_hash = wanted is not None and found.digest is not None and found.digest.startswith(wanted)
        if wanted is not None and found.version != wanted and not is_hash:
            raise NotAvailable(
                f"{self.url} answers the request for {hub_id} with version {shown(found.version)}"
            )
        return found

    def versions(self, hub_id: HubId) -> list[str]:
        """Return the versions of an environment, the newest first."""
        path = f"/environmentshub/{hub_id.owner}/{hub_id.name}/versions"
        listed = self._get(path, _Versions, hub_id=hub_id).versions
        return [one.semantic_version for one in listed if one.semantic_version]

    def wheel_link(self, hub_id: HubId, details: Details) -> WheelLink:
        """Return where the wheel of a version is, from the owner's index or else from its details."""
        index = details.install_index_url or details.simple_index_url
        if index:
            links = self._index(index, hub_id, details)
            if links:
                return links[0]
        if details.wheel_url:
            return WheelLink(details.wheel_url, _filename(details.wheel_url), None)
        raise NotAvailable(
            f"{hub_id} has no wheel on the hub that can be used here; a private environment, or one that is "
            "only source, must be installed with the command prime"
        )

    def download(self, link: WheelLink) -> bytes:
        """Return the bytes of a wheel."""
        return self._fetch(link.url, MAX_WHEEL_BYTES, _DOWNLOAD_DEADLINE_S)

    def _index(self, index: str, hub_id: HubId, details: Details) -> list[WheelLink]:
        page_url = f"{index.rstrip('/')}/{hub_id.distribution}/"
        text = self._fetch(page_url, _MAX_ANSWER_BYTES, _DEADLINE_S).decode(errors="replace")
        links = [_link(page_url, href) for href in _hrefs(text)]
        wanted = (hub_id.distribution, details.version)
        return [one for one in links if one is not None and _named(one.filename) == wanted]

    # Requests

    def _get(self, path: str, kind: type[_T], hub_id: HubId | None = None, *, wrapped: bool = True) -> _T:
        body = self._fetch(f"{self.url}{_PREFIX}{path}", _MAX_ANSWER_BYTES, _DEADLINE_S, hub_id)
        try:
            answer = msgspec.json.decode(body)
            if wrapped and isinstance(answer, dict) and isinstance(answer.get("data"), dict):
                answer = answer["data"]
            return msgspec.convert(answer, kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            why = " ".join(str(error).split()) or "it is nested too deeply"
            raise NotAvailable(
                f"{self.url} gave an answer that is not the hub's ({why[:200]}); check PRIME_API_BASE_URL"
            ) from None

    def _fetch(self, url: str, largest: int, seconds: float, hub_id: HubId | None = None) -> bytes:
        deadline = time.monotonic() + seconds
        for _ in range(_MAX_REDIRECTS + 1):
            self._check_url(url)
            status, headers, body = _exchange(url, self._headers(url), deadline, largest)
            if status in (301, 302, 303, 307, 308) and headers.get("Location"):
                url = _joined(url, headers["Location"])
                continue
            if status == 200:
                return body
            raise self._refusal(url, status, body, hub_id)
        raise NotAvailable(f"{_origin(self.url)} redirects more than {_MAX_REDIRECTS} times")

    def _headers(self, url: str) -> dict[str, str]:
        headers = {"Accept": "*/*"}
        if self._key and _origin(url) == _origin(self.url):
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    def _check_url(self, url: str) -> None:
        """Raise ``NotAvailable`` unless the URL is one of the hub's: https, or loopback while the API is too."""
        parts = _parts(url)
        host = parts.hostname or ""
        is_hub = host == _parts(self.url).hostname or host.endswith(HUB_HOSTS)
        is_local = is_loopback(host) and is_loopback_url(self.url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_local)
        if not (is_hub and is_safe and not parts.username and not parts.password):
            raise NotAvailable(
                f"the hub refers to {shown(_origin(url))}, which is not a host of the hub; not used"
            )

    def _refusal(self, url: str, status: int, body: bytes, hub_id: HubId | None) -> NotAvailable:
        if status == 404 and hub_id is not None:
            private = "" if self._key else "; a private one needs PRIME_API_KEY"
            return NotAvailable(f"the hub at {self.url} has no environment {hub_id} for this user{private}")
        if status in (401, 403):
            what = "refuses this PRIME_API_KEY" if self._key else "needs a key; set PRIME_API_KEY"
            return NotAvailable(f"the hub at {self.url} {what} (status {status})")
        return NotAvailable(f"{_origin(url)} answered with status {status}{_detail(body)}")


def _exchange(
    url: str, headers: dict[str, str], deadline: float, largest: int
) -> tuple[int, Mapping[str, str], bytes]:
    try:
        with HttpConnection(url) as connection:
            answer = connection.request("GET", "", deadline, headers)
            return answer.status, dict(answer.headers.items()), answer.body(largest)
    except BodyTooLarge:
        raise NotAvailable(f"{_origin(url)} sends more than {largest >> 20} MB; not used") from None
    except (OSError, ValueError) as error:
        raise NotAvailable(
            f"the hub at {_origin(url)} cannot be reached: {error or type(error).__name__}"
        ) from None


def _detail(body: bytes) -> str:
    try:
        detail: Any = msgspec.json.decode(body).get("detail")
    except (msgspec.MsgspecError, ValueError, RecursionError, AttributeError):
        return ""
    return f": {shown(detail)}" if isinstance(detail, str) else ""


def _checked_base(url: str) -> str:
    base = url.rstrip("/").removesuffix(_PREFIX)
    try:
        parts = _parts(base)
    except NotAvailable:
        parts = None
    if parts is None or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise InvalidArgument(f"PRIME_API_BASE_URL={shown(url)} is not a URL like {DEFAULT_URL}")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise InvalidArgument(f"PRIME_API_BASE_URL={shown(url)} does not begin with https://")
    return base


def _parts(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise NotAvailable(f"the hub refers to {shown(url)}, which is not a URL") from None
    return parts


def _origin(url: str) -> str:
    parts = _parts(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _joined(base: str, href: str) -> str:
    try:
        return urljoin(base, href)
    except ValueError:
        raise NotAvailable(f"the hub refers to {shown(href)}, which is not a URL") from None


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _hrefs(page: str) -> list[str]:
    parser = _Links()
    try:
        parser.feed(page)
    except (AssertionError, ValueError, RecursionError):  # HTMLParser asserts that declarations are complete
        raise NotAvailable("the package index of the hub sent a page that is not HTML") from None
    return parser.found


def _link(page_url: str, href: str) -> WheelLink | None:
    url, _, fragment = _joined(page_url, href).partition("#")
    name = _filename(url)
    found = _SHA256.fullmatch(fragment)
    return WheelLink(url, name, found and found[1]) if name.endswith(".whl") else None


def _filename(url: str) -> str:
    return PurePosixPath(unquote(_parts(url).path)).name


def _named(filename: str) -> tuple[str, str] | None:
    parts = filename.removesuffix(".whl").split("-")
    return (normalised(parts[0]), parts[1]) if len(parts) >= 5 else None
