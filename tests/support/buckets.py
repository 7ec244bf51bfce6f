"""Objects of the S3 server, asked for by signed requests of our own."""

from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from s3_server import S3


def create_bucket(s3: S3, name: str) -> S3:
    """A bucket of its own: a process keeps the client of a bucket, which goes to the server that it found first."""
    made = replace(s3, bucket=name)
    assert made.request("PUT").status == 200
    return made


@dataclass(frozen=True)
class StorePath:
    """A key of a bucket, used like a path."""

    s3: S3
    key: str

    def __truediv__(self, name: str) -> "StorePath":
        return StorePath(self.s3, f"{self.key}/{name}")

    def __str__(self) -> str:
        return self.uri

    @property
    def uri(self) -> str:
        return self.s3.uri(self.key)

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.key).suffix

    def relative_to(self, other: "StorePath") -> str:
        return self.key.removeprefix(f"{other.key}/")

    def files(self) -> list["StorePath"]:
        return [StorePath(self.s3, key) for key in self.s3.keys(f"{self.key}/") if not key.endswith("/")]

    def exists(self) -> bool:
        return self.s3.request("HEAD", self.key).status == 200

    def read_bytes(self) -> bytes:
        answer = self.s3.request("GET", self.key)
        assert answer.status == 200, answer
        return answer.body

    def write_bytes(self, content: bytes) -> None:
        assert self.s3.request("PUT", self.key, body=content).status == 200
