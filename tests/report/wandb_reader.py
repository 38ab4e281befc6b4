"""Reader of what Weights & Biases wrote offline, run in the environment of `scripts/install --trackers`: prints history and configuration as JSON.

The file is a log of LevelDB: after seven bytes, blocks of 32 KiB of records, each with a checksum, its length and its kind, and then its content.
"""

import json
import sys

from wandb.proto.wandb_internal_pb2 import Record

_BLOCK, _HEADER, _WHOLE, _FIRST, _LAST = 32768, 7, 1, 2, 4


def records(content):
    """Yield the records; those that span blocks are put together."""
    at, parts = _HEADER, b""
    while at + _HEADER <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER:  # too little is left of the block for a header
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        part = content[at + _HEADER : at + _HEADER + length]
        parts = part if kind in (_WHOLE, _FIRST) else parts + part
        if kind in (_WHOLE, _LAST):
            yield Record.FromString(parts)
        at += _HEADER + length


def main(path):
    history, config = [], {}
    with open(path, "rb") as file:
        content = file.read()
    for record in records(content):
        if record.WhichOneof("record_type") == "history":
            history.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
        elif record.WhichOneof("record_type") == "run":
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    print(json.dumps({"history": history, "config": config}))


if __name__ == "__main__":
    main(sys.argv[1])
