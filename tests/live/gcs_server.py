"""gcp-storage-emulator with what it lacks and a lake needs: an upload with ifGenerationMatch=0 overwrites nothing."""

from __future__ import annotations

import sys
import threading
from http import HTTPStatus
from typing import Any

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import Conflict
from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator.storage import Storage

_one_at_a_time = threading.Lock()
_exclusive = threading.local()
_create_file = Storage.create_file


def create_file(self: Any, bucket: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """Refuse what is there where the request says so."""
    with _one_at_a_time:
        if getattr(_exclusive, "now", False):
            try:
                self.get_file_obj(bucket, name)
            except Exception:  # it is not there, by whatever name the emulator says so
                pass
            else:
                raise Conflict("conditionNotMet")
        return _create_file(self, bucket, name, *args, **kwargs)


def insert(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
    """An upload, which ends with 412 where its condition does not hold."""
    _exclusive.now = request.query.get("ifGenerationMatch") == ["0"]
    objects_insert(request, response, storage, *args, **kwargs)
    if _exclusive.now and response.status == HTTPStatus.BAD_REQUEST:
        response.status = HTTPStatus.PRECONDITION_FAILED


objects_insert = objects.insert
Storage.create_file = create_file
server.HANDLERS = tuple(
    (path, {how: insert if act is objects_insert else act for how, act in ways.items()})
    for path, ways in server.HANDLERS
)

if __name__ == "__main__":
    server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="bucket").run()
