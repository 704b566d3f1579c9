"""Token files as their own projects write them, byte by byte from the published layouts."""

import json
import struct

import numpy as np

MEGATRON_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def write_megatron(prefix, sizes, boundaries=None, dtype="uint16", modes=False, **changes):
    """``prefix.bin`` and ``prefix.idx``: sequences of these sizes, ids 0, 1, 2 ...; returns the path of the first.

    ``boundaries`` of documents are in sequences; ``changes`` replace parts of the index: magic, version, code,
    sequences, count (of boundaries), lengths, pointers, documents or tail.
    """
    item = np.dtype(dtype).itemsize
    ends = np.cumsum(sizes, dtype=np.int64)
    part = {
        "magic": b"MMIDIDX\0\0",
        "version": 1,
        "code": MEGATRON_CODES[dtype],
        "sequences": len(sizes),
        "lengths": sizes,
        "pointers": (ends - sizes) * item,
        "documents": range(len(sizes) + 1) if boundaries is None else boundaries,
        "tail": bytes(len(sizes) if modes else 0),
    } | changes
    part.setdefault("count", len(part["documents"]))
    prefix.with_suffix(".idx").write_bytes(
        part["magic"]
        + struct.pack("<QBQQ", part["version"], part["code"], part["sequences"], part["count"])
        + np.asarray(part["lengths"], np.int32).tobytes()
        + np.asarray(part["pointers"], np.int64).tobytes()
        + np.asarray(part["documents"], np.int64).tobytes()
        + part["tail"]
    )
    path = prefix.with_suffix(".bin")
    np.arange(ends[-1] if len(ends) else 0).astype(dtype).tofile(path)
    return path


def write_datatrove(path, ends, dtype="uint16", tokens=None, metadata=None):
    """``path``, ``path.index`` and, with ``metadata``, ``path.metadata``."""
    np.arange(ends[-1] if tokens is None else tokens).astype(dtype).tofile(path)
    path.with_name(path.name + ".index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    if metadata is not None:
        path.with_name(path.name + ".metadata").write_text(metadata, errors="surrogateescape")
    return path


def litdata_chunk(lengths, dtype="int32"):
    """The bytes of a chunk of items of these lengths, ids 0, 1, 2 ..."""
    item = np.dtype(dtype).itemsize
    header = 4 * (len(lengths) + 2)
    starts = header + np.cumsum([0, *lengths]) * item
    return struct.pack(f"<{len(lengths) + 2}I", len(lengths), *starts) + np.arange(sum(lengths)).astype(dtype).tobytes()


def write_litdata(folder, chunks, format="no_header_tensor:16", dtype="int32", **config):
    """A folder with ``index.json`` and a chunk for each list of item lengths; returns the paths of the chunks."""
    paths = [folder / f"chunk-0-{number}.bin" for number in range(len(chunks))]
    entries = []
    for path, lengths in zip(paths, chunks, strict=True):
        path.write_bytes(litdata_chunk(lengths, dtype))
        entry = {"filename": path.name, "chunk_size": len(lengths), "dim": sum(lengths)}
        entries.append(entry | {"chunk_bytes": path.stat().st_size})
    settings = {"item_loader": "TokensLoader", "data_format": [format], "compression": None, "encryption": None}
    (folder / "index.json").write_text(json.dumps({"chunks": entries, "config": settings | config}))
    return paths
