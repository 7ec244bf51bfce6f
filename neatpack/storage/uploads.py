"""What pyarrow cannot ask of S3: to write an object only if there is none, and to abort uploads that were left.

Optional: botocore (`neatpack[s3]`) speaks for us where it is installed. Without it locks count (lock.py), which is all
that other stores have, and uploads that a killed process left wait for the bucket's own rule to abort them.
"""

import logging
import os
from functools import lru_cache
from typing import Any

from neatpack.storage.clients import Bucket, s3_options
from neatpack.storage.location import Remote

logger = logging.getLogger(__name__)


def created(place: Remote, content: bytes) -> bool | None:
    """Whether an object was written, for there was none; None: the store, or what is installed, cannot tell."""
    client = _client(place)
    if client is None:
        return None
    try:
        client.put_object(Bucket=_bucket(place), Key=place.key, Body=content, IfNoneMatch="*")
    except _errors() as error:
        if _status(error) == 412:
            return False
        logger.debug("%s: a conditional write: %s", place, type(error).__name__)
        return None
    return True


def abort_uploads(folder: Remote) -> int:
    """Uploads below a folder that nobody completed or aborted end now, and their parts are no longer paid for.

    Not while others write there. How many there were.
    """
    if folder.scheme != "s3":
        return 0
    client = _client(folder)
    if client is None:
        logger.info("%s: uploads that a killed run may have left are not aborted, for botocore is not installed: pip "
                    "install 'neatpack[s3]', or let a rule of the bucket abort them", folder)  # fmt: skip
        return 0
    bucket, count = _bucket(folder), 0
    try:
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=f"{folder.key}/"):
            for upload in page.get("Uploads", ()):
                client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                count += 1
    except _errors() as error:  # who may write need not be allowed to list; and the run itself will say what is wrong
        logger.info("%s: uploads that a killed run may have left are not aborted: %s", folder, type(error).__name__)
    if count:
        logger.info("%s: %d uploads of a run that was killed are aborted", folder, count)
    return count


def _errors() -> tuple[type[Exception], ...]:
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError


def _status(error: Any) -> int | None:
    """Of the answer, if there was one."""
    status: int | None = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def _bucket(place: Remote) -> str:
    return place.authority.rpartition("@")[2]


def _client(place: Remote) -> Any:
    return _made(place.bucket, os.getpid()) if place.scheme == "s3" else None


@lru_cache(maxsize=8)
def _made(bucket: Bucket, _process: int) -> Any:
    """By the same options and the same chain of credentials as pyarrow's; None: botocore is not installed."""
    try:
        import botocore.config
        import botocore.session
    except ModuleNotFoundError:
        return None
    given = s3_options(bucket)
    endpoint = given.get("endpoint_override")
    return botocore.session.get_session().create_client(
        "s3",
        region_name=given.get("region"),
        endpoint_url=f"{given.get('scheme', 'https')}://{endpoint}" if endpoint else None,
        aws_access_key_id=given.get("access_key"),
        aws_secret_access_key=given.get("secret_key"),
        config=botocore.config.Config(
            retries={"mode": "standard", "max_attempts": 5}, s3={"addressing_style": "path" if endpoint else "auto"}
        ),
    )
