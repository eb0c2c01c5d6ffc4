"""Secrets of thirty and more kinds, planted wherever a log has text, and looked for in whatever the tool wrote."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tracelens.sources import exposition

HERE = Path(__file__).parent
SAMPLES = HERE.parent / "samples"

#: Kind -> what is planted. Nothing of it is anybody's.
SECRETS: Mapping[str, str] = {
    "prompt": "Draft the dismissal letter of Zebulon Quarrington",
    "system prompt": "You are Velvetine, never say that you are vexillary",
    "output": "Dear Mr Quarrington, it is with umbrage-9921 that we",
    "reasoning": "The user seems to be litigious-5512, so I will",
    "chat template": "<|im_start|>user\nmy diagnosis is porphyria-3307<|im_end|>",
    "tool arguments": '{"patient": "Ottoline Brackwater"}',
    "token ids": "[915311, 772904, 661208]",
    "token text": "tok_Quagmirish_8841",
    "ip v4": "203.0.113.77",
    "ip v6": "2001:db8:5afe:1dea::c0de",
    "host name": "db-quokka-17.corp.example",
    "mac address": "02:4f:9a:d1:7e:3b",
    "e-mail": "zebulon.quarrington@example.org",
    "telephone": "+44 20 7946 0918",
    "user name": "zquarrington",
    "user id": "usr_7Tk2Vx93Qp",
    "session id": "sess_88d1f0a7c3e94b",
    "organisation": "org-Brackwater-Holdings",
    "cookie": "sid=c00k1e-5d41402abc; Path=/",
    "bearer token": "Bearer bt_9f86d081884c7d659a2f",
    "basic auth": "Basic enE6aHVudGVyMjh6eg==",
    "api key": "sk-proj-T3BlbkFJq7wXzN2mR8vL",
    "hub token": "hf_QzWxEcRvTbYnUmIkOlPa",
    "cloud key": "AKIAQ7ZXJ4N5EXAMPLE2",
    "repository token": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "private key": "-----BEGIN PRIVATE KEY-----MIIEvQIBADANBgkqqz7",
    "password": "hunter28-correct-horse",
    "URL with credentials": "https://zq:hunter28zz@vault.example/v1?sig=5ekrit",
    "database address": "postgres://app:pgs3cr3t@10.20.30.41:5432/prod",
    "query string": "/v1/chat?api_key=qs-77ab12cd&user=ottoline",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ6cSJ9.Xq7zSIGNATUREx",
    "card number": "4539 1488 0343 6467",
    "bank account": "GB33BUKB20201555555555",
    "file content": "root:x:0:0:quokka:/root:/bin/zqsh",
    "path with a name": "/home/zquarrington/private/thesis.txt",
    "image": "data:image/png;base64,iVBORw0KGgoZQ7",
    "street address": "14 Umbrage Lane, Brackwater",
    "environment": "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIq7z",
}
#: Pieces that betray a kind even where it was cut, quoted or taken apart.
NEEDLES: Mapping[str, tuple[bytes, ...]] = {
    kind: tuple(
        sorted({text.encode(), *(p.encode() for p in re.findall(r"[\w.@:+-]{9,}", text) if re.search(r"\d|[A-Z]", p))})
    )
    for kind, text in SECRETS.items()
}
#: Keys whose text is what the tool is for (SCHEMA: names of models, runs, classes of traffic) or what makes a record
#: one; their values stay as they are.
KEPT = re.compile(
    r"^(?:\w*model\w*|task_?type|engine\w*|method|\w*algorithm|version|\w*_version|run(?:_id|_name)?|role|record|table|object|"
    r"replica|process|kind|event|endpoint_type|backend|benchmark_phase|unit|type|date|\w*time(?:stamp)?\w*|ts\w*|"
    r"created\w*|asctime|ph|cat|surface|job|__name__|metric|le|quantile|levelname|stream|name|status|labels)$",
    re.I,
)


def planted_keys() -> dict[str, Any]:
    """What a record of any engine may carry along, under the names that it has in the wild."""
    s = SECRETS
    return {
        "prompt": s["prompt"], "text": s["output"], "input_text": s["prompt"], "generated_text": s["output"],
        "prompts": [s["prompt"]], "generated_texts": [s["output"]], "reasoning_content": s["reasoning"],
        "messages": [{"role": "system", "content": s["system prompt"]}, {"role": "user", "content": s["prompt"]}],
        "prompt_token_ids": [915311, 772904, 661208], "token_ids": [915311, 772904, 661208],
        "output_ids": [915311, 772904, 661208], "tokens": [s["token text"]], "logprobs": [{s["token text"]: -0.1}],
        "user": s["user id"], "username": s["user name"], "session_id": s["session id"], "email": s["e-mail"],
        "organization": s["organisation"], "client_ip": s["ip v4"], "remote_addr": s["ip v6"], "host": s["host name"],
        "hostname": s["host name"], "ip": s["ip v4"], "url": s["URL with credentials"], "path": s["path with a name"],
        "headers": {"authorization": s["bearer token"], "cookie": s["cookie"], "x-api-key": s["api key"],
                    "x-forwarded-for": s["ip v4"], "proxy-authorization": s["basic auth"]},
        "env": {"AWS_SECRET_ACCESS_KEY": s["environment"]}, "api_key": s["api key"], "token": s["JWT"],
        "args": [s["hub token"], s["repository token"]], "error_message": s["file content"], "image": s["image"],
        "metadata_text": s["card number"], "note": s["bank account"], "phone": s["telephone"], "mac": s["mac address"],
        "tool_calls": [{"function": {"arguments": s["tool arguments"]}}], "chat_template": s["chat template"],
        "dsn": s["database address"], "query": s["query string"], "password": s["password"], "pem": s["private key"],
        "key": s["cloud key"], "address": s["street address"],
        s["e-mail"]: 1, s["path with a name"]: {"x": 1},
    }  # fmt: skip


def lines_between() -> list[str]:
    """Lines of servers, gateways and libraries that stand among the records of a text log."""
    s = SECRETS
    told = [
        f"INFO 05-06 12:00:01 [logger.py:42] Received request chatcmpl-9: prompt: {s['prompt']!r}, "
        f"params: SamplingParams(n=1, temperature=0.7, top_p=0.9, stop=[{s['token text']!r}]), "
        f"prompt_token_ids: {s['token ids']}, lora_request: None.",
        f"INFO 05-06 12:00:01 [logger.py:42] Generated response chatcmpl-9: output: {s['output']!r}, "
        f"output_token_ids: {s['token ids']}, finish_reason: stop",
        f'INFO:     {s["ip v4"]}:51514 - "POST {s["query string"]} HTTP/1.1" 200 OK',
        f'[{s["ip v6"]}] - {s["user name"]} "GET {s["URL with credentials"]}" 401',
        f'Traceback (most recent call last):\n  File "{s["path with a name"]}", line 3',
        f"ValueError: {s['file content']}",
        f"Receive: obj=GenerateReqInput(rid='a-1', text={s['prompt']!r}, input_ids={s['token ids']}, "
        f"image_data={s['image']!r}, session_id={s['session id']!r})",
        f"Finish: obj=GenerateReqInput(rid='a-1', text={s['prompt']!r}), "
        f"out={{'text': {s['output']!r}, 'output_ids': {s['token ids']}, "
        "'meta_info': {'id': 'a-1', 'prompt_tokens': 9, 'completion_tokens': 4, 'spec_verify_ct': 2}}",
        f"slot update_slots: id 0 | task 7 | prompt {s['chat template']!r}",
        f"non-default args: {{'model': '/m/big', 'api_key': [{s['api key']!r}], 'host': {s['ip v4']!r}, "
        f"'chat_template': {s['chat template']!r}, 'speculative_config': {{'method': 'eagle3', 'model': '/heads/e3', "
        f"'num_speculative_tokens': 3, 'hf_token': {s['hub token']!r}}}}}",
        f"server_args=ServerArgs(model_path='/m/big', host={s['host name']!r}, api_key={s['api key']!r}, "
        f"admin_api_key={s['password']!r}, speculative_num_steps=3)",
    ]
    return told + [f"{kind}: {text}" for kind, text in s.items()]


def unpacked(path: Path) -> bytes:
    """A sample's bytes, out of its compression."""
    data = path.read_bytes()
    for magic, opened in ((b"\x1f\x8b", gzip.decompress), (b"BZh", bz2.decompress), (b"\xfd7zXZ", lzma.decompress)):
        if data.startswith(magic):
            with suppress(EOFError, OSError):  # cut off on purpose
                return opened(data)
    return data


def corpus() -> list[Path]:
    """A sample of every surface: the packaged ones, those of the engines' tests, and real ones."""
    sites = [SAMPLES / f for f in ("vllm-site/k5", "rtp-site/k5", "canonical", "hostile", "vllm-real/B-trunc2-k1")]
    found = [p for folder in (*sites, HERE / "data") for p in sorted(folder.rglob("*")) if p.is_file()]
    return [p for p in found if p.name not in ("truth.json", "metrics-truth.json") and "lake-" not in str(p)]


def planted(data: bytes, *, most: int, head: int = 24 << 10) -> Iterator[bytes]:
    """Variants of a sample with secrets in them: added, and in the place of each text in turn (`most` of those).

    Args:
        data: a sample; of lines, the first `head` bytes.
        most: how many texts are replaced, spread over the sample; 0 for every one.
    """
    text = data.decode("utf-8", "replace")
    whole = _json(text)
    if whole is not None:
        yield json.dumps(_with_keys(whole)).encode()
        for variant in _replaced_in_turn(whole, most):
            yield json.dumps(variant).encode()
        return
    lines = text[:head].split("\n")
    lines = lines[:-1] if len(text) > head else lines
    if exposition.looks(data):
        yield from _pages(lines)
        return
    records = [_json(line) for line in lines]
    if sum(r is not None for r in records) > len(lines) / 2:
        found = [r for r in records if r is not None]
        out = [json.dumps(r) for r in found] + [json.dumps(_with_keys(r)) for r in found]
        for record in _shapes(found):
            out += [json.dumps(v) for v in _replaced_in_turn(record, most)]
        yield "\n".join([*out, *lines_between()]).encode()
        return
    added = lines_between()
    mixed = [part for i, line in enumerate(lines) for part in (line, added[i % len(added)])]
    yield "\n".join([*mixed, *added]).encode()
    secret = itertools.cycle(SECRETS.values())
    yield "\n".join(f"{line} {next(secret)}" for line in lines).encode()
    yield "\n".join(_texts_replaced(line, secret) for line in lines).encode()


def _json(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict | list) else None


def _shapes(records: Iterable[Any]) -> list[Any]:
    """One record of each set of keys, at most six."""
    found: dict[Any, Any] = {}
    for record in records:
        found.setdefault(tuple(sorted(record)) if isinstance(record, dict) else len(record), record)
    return list(found.values())[:6]


def _with_keys(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_keys(v) for v in value]
    if not isinstance(value, dict):
        return value
    own = {k: _with_keys(v) for k, v in value.items()}
    return {**{k: v for k, v in planted_keys().items() if k not in own}, **own}


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of texts that may be anybody's."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:3]):
            yield from _leaves(inner, (*path, i))
    elif isinstance(value, str) and not (isinstance(path[-1], str) and KEPT.match(path[-1])):
        yield path


def _replaced_in_turn(value: Any, most: int) -> Iterator[Any]:
    paths = list(_leaves(value))
    step = max(1, len(paths) // most) if most else 1
    secrets = list(SECRETS.values())
    for path in paths[::step]:
        # Which secret stands where is always the same, and differs from place to place.
        secret = secrets[zlib.crc32(repr(path).encode()) % len(secrets)]
        yield _put(value, path, secret)


def _put(value: Any, path: tuple[Any, ...], secret: str) -> Any:
    if not path:
        return secret
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _put(copy[path[0]], path[1:], secret)
    return copy


def _pages(lines: list[str]) -> Iterator[bytes]:
    """Prometheus text, which holds no other lines: secrets in added labels and comments, and in values of labels."""
    secret = itertools.cycle(SECRETS.values())

    def quoted() -> str:
        return json.dumps(next(secret), ensure_ascii=False)

    added = [re.sub(r"\{", lambda _: f"{{note={quoted()},", line, count=1) for line in lines]
    comments = [f"# HELP vllm:note_{i} {kind} {text}" for i, (kind, text) in enumerate(SECRETS.items())]
    yield "\n".join([*comments, *added]).replace("\\n", " ").encode()
    yield "\n".join(_texts_replaced(line, secret) for line in lines).encode()


_QUOTED = re.compile(r"""(\w+)(["']?\s*[=:]\s*)(['"])((?:(?!\3).)*)\3""")


def _texts_replaced(line: str, secrets: Iterator[str]) -> str:
    """A line whose quoted values are secrets, where their key is none of KEPT."""

    def changed(found: re.Match[str]) -> str:
        if KEPT.match(found[1]):
            return found[0]
        return f"{found[1]}{found[2]}{found[3]}{next(secrets).replace(found[3], '')}{found[3]}"

    return _QUOTED.sub(changed, line)


def leaks(texts: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Kind -> places in which something of it stands."""
    found: dict[str, list[str]] = {}
    for place, data in texts.items():
        for kind, needles in NEEDLES.items():
            hit = next((n for n in needles if n in data), None)
            if hit is not None:
                at = data.index(hit)
                found.setdefault(kind, []).append(f"{place}: …{data[max(0, at - 60) : at + 60]!r}")
    return found


def written(folder: Path) -> dict[str, bytes]:
    """Everything below a folder: files as they are, and Parquet decoded."""
    import pyarrow.parquet as pq

    found: dict[str, bytes] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        found[name] = path.read_bytes()
        if path.suffix == ".parquet":
            table = pq.ParquetFile(path)
            metadata = repr(table.schema_arrow.metadata)
            found[f"{name} (decoded)"] = (
                json.dumps(table.read().to_pylist(), default=str, ensure_ascii=False) + metadata
            ).encode()
    return found
