"""One file over HTTP, resumed where it stopped (RFC 9110, section 14: range requests)."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from octavo.core.errors import DownloadError

_CHUNK_BYTES = 1 << 18
_TIMEOUT_SECONDS = 30.0
_ATTEMPTS_WITHOUT_PROGRESS = 4
_RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_CERTIFICATE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class TransferRefused(Exception):
    """This address cannot be fetched directly; pip may know how (credentials, certificates)."""


class _Interrupted(Exception):
    """The connection broke; what has arrived is kept."""


def fetch_url(
    url: str,
    path: Path,
    *,
    limit_bytes: int,
    report: Callable[[int], None],
    sleep: Callable[[float], None],
) -> None:
    """Append to `path` what it lacks of the file at `url`.

    Broken connections are retried with growing pauses as long as bytes arrive. `report` gets the
    bytes present so far. The caller checks the content.

    Raises:
        TransferRefused: not HTTP, or the server wants credentials or shows an unknown certificate.
        DownloadError: the server has no such file, sends more than `limit_bytes`, or the
            connection keeps failing.
    """
    if not url.startswith(("http://", "https://")):
        raise TransferRefused(f"not an HTTP address: {url}")
    failures = 0
    while True:
        before = _size(path)
        try:
            _transfer(url, path, before, limit_bytes, report)
            return
        except _Interrupted as error:
            failures = 1 if _size(path) > before else failures + 1
            if failures >= _ATTEMPTS_WITHOUT_PROGRESS:
                raise DownloadError(
                    f"the download keeps failing: {error}",
                    field=_without_query(url),
                    remedy="check the connection and try again; it goes on from here",
                ) from error
            sleep(2.0 ** (failures - 1))


def _transfer(
    url: str, path: Path, start: int, limit_bytes: int, report: Callable[[int], None]
) -> None:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    with _network_errors(url, path):
        response = urllib.request.urlopen(
            request, timeout=_TIMEOUT_SECONDS, context=_certificates(url)
        )
        with response:
            resumed = response.status == 206 and _range_start(response) == start
            if start and not resumed:
                start = 0
            length = response.headers.get("Content-Length")
            expected = start + int(length) if length and length.isdecimal() else None
            with path.open("ab") as out:
                out.truncate(start)
                done = _copy(response, out, start, limit_bytes, report, url)
    if expected is not None and done < expected:
        raise _Interrupted(f"the connection closed after {done} of {expected} bytes")


def _copy(
    response: http.client.HTTPResponse,
    out: BinaryIO,
    done: int,
    limit_bytes: int,
    report: Callable[[int], None],
    url: str,
) -> int:
    report(done)
    while data := _read(response):
        if done + len(data) > limit_bytes:
            raise DownloadError(
                f"the server sends more than the {limit_bytes} bytes of this file",
                field=_without_query(url),
            )
        out.write(data)
        done += len(data)
        report(done)
    return done


def _read(response: http.client.HTTPResponse) -> bytes:
    """Kept apart from writing, so that a full disk is not taken for a broken connection."""
    try:
        return response.read(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


@contextmanager
def _network_errors(url: str, path: Path) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            # What is on disk is not the beginning of this file.
            path.unlink(missing_ok=True)
            raise _Interrupted("the server refused the range") from error
        if error.code in (401, 403, 407):
            raise TransferRefused(f"HTTP {error.code}") from error
        if error.code in _RETRY_STATUS:
            raise _Interrupted(f"HTTP {error.code} {error.reason}") from error
        raise DownloadError(
            f"HTTP {error.code} {error.reason}", field=_without_query(url)
        ) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            raise TransferRefused(str(error.reason)) from error
        raise _Interrupted(str(error.reason)) from error
    except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


def _certificates(url: str) -> ssl.SSLContext | None:
    """The authorities that pip is told to trust, so that both succeed or fail alike."""
    if not url.startswith("https://"):
        return None
    for variable in _CERTIFICATE_VARIABLES:
        bundle = os.environ.get(variable)
        if bundle and os.path.isfile(bundle):
            return ssl.create_default_context(cafile=bundle)
    return ssl.create_default_context()


def _range_start(response: http.client.HTTPResponse) -> int | None:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match.group(1)) if match else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _without_query(url: str) -> str:
    """An address fit for a message: signed queries and credentials are left out."""
    return re.sub(r"//[^/@]*@", "//", url.split("?", 1)[0])
