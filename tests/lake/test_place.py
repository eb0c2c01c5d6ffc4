"""What `--lake` may name, and what is said of what it may not."""

from __future__ import annotations

import copy
import fnmatch
import pickle
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.cli import run as command
from tracelens.errors import InputError
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.redact import redaction_of
from tracelens.lake import connection, ledger, mirror, objects
from tracelens.lake.place import ObjectPath, extra_of, is_remote, lake_path, path_of, pattern_of, url_of
from tracelens.lake.salt import VARIABLE
from tracelens.lake.storage import storage_of


@pytest.mark.parametrize(
    ("text", "url", "extra"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b", "s3"),
        ("s3://bucket/a/b/", "s3://bucket/a/b", "s3"),
        ("s3://bucket", "s3://bucket", "s3"),
        ("S3://bucket/A?b", "s3://bucket/A?b", "s3"),
        ("gs://bucket/x y", "gs://bucket/x y", "gcs"),
        ("az://container/x", "az://container/x", "azure"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x", "azure"),
    ],
)
def test_a_url_stays_what_it_is(text: str, url: str, extra: str) -> None:
    place = lake_path(text)
    assert str(place) == f"{place}" == url_of(place) == url
    assert is_remote(place)
    assert extra_of(place) == extra
    for again in (lake_path(place), pickle.loads(pickle.dumps(place)), copy.copy(place), lake_path(str(place))):
        assert again == place
        assert str(again) == url
    assert url_of(Path(text)) == url  # who has made a plain path of it loses a slash, and nothing else
    assert str(place / "more") == f"{url}/more"


@pytest.mark.parametrize("text", ["lake", "/var/lake", "./s3", "s3", "c:/lake", "a:b/c", "../s3:x"])
def test_a_folder_is_a_folder(text: str) -> None:
    assert lake_path(text) == Path(text)
    assert not isinstance(lake_path(text), ObjectPath)
    assert not is_remote(lake_path(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ftp://host/lake", r"no lake can be at ftp://.*s3://"),
        ("s3://", r"name a bucket, as in s3://bucket/prefix"),
        ("s3://AKID:hidden@bucket/lake", r"write no keys into a URL.*AWS_ACCESS_KEY_ID"),
        ("gs://user@bucket/lake", r"write no keys into a URL.*GOOGLE_APPLICATION_CREDENTIALS"),
        ("abfs://account:hidden@host/lake", r"write no keys into a URL"),
        ("s3://bucket/lake?s3_secret_access_key=hidden", r"write no keys or options into a URL.*AWS_ACCESS_KEY_ID"),
        ("az://container/lake?sv=2022&sig=hidden", r"write no keys or options into a URL.*AZURE_STORAGE_ACCOUNT_KEY"),
        ("s3://AKID:hidden/bucket/lake", r"no bucket's name has a colon.*AWS_ENDPOINT_URL"),
        ("s3://bucket/a/../b", r"write the prefix without \. and \.\."),
    ],
)
def test_what_can_be_no_place_is_refused(text: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=told) as error:
        lake_path(text)
    assert "hidden" not in str(error.value)
    assert command(["report", "--lake", text]) == 3
    assert "hidden" not in capsys.readouterr().err


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "s3"), ("gs", "gcs"), ("az", "azure")])
@pytest.mark.parametrize("missing", ["fsspec", "its own"])
def test_a_missing_extra_is_named(scheme: str, extra: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}[extra]
    if missing == "fsspec":
        for name in [name for name in sys.modules if name.partition(".")[0] == "fsspec"]:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, "fsspec", None)
    else:
        pytest.importorskip("fsspec")
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    monkeypatch.setitem(sys.modules, own, None)
    objects.objects_of.cache_clear()
    with pytest.raises(InputError, match=rf"pip install 'tracelens\[{extra}\]'"):
        storage_of(lake_path(f"{scheme}://bucket/lake"))


def test_a_bucket_keeps_no_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a lake in a bucket is the bucket, and its key to the ids must not lie there."""
    monkeypatch.delenv(VARIABLE, raising=False)
    place, options = lake_path("s3://bucket/lake"), IngestOptions(redact_ids=True)
    with pytest.raises(InputError, match=rf"set \${VARIABLE}"):
        redaction_of(place, options, ledger.Ledger(()))
    monkeypatch.setenv(VARIABLE, "0123456789abcdef")
    assert redaction_of(place, options, ledger.Ledger(())) is not None


def test_a_tiny_lake_is_one_size_everywhere() -> None:
    assert mirror.TINY == connection.TINY


@given(st.text("[]*?a/"))
def test_a_pattern_matches_its_path_alone(path: str) -> None:
    pattern = pattern_of(path)
    assert path_of(pattern) == path
    assert fnmatch.fnmatchcase(path, pattern)
    assert re.fullmatch(r"(?:[^*?\[]|\[[*?\[]\])*", pattern)  # nothing special is left
