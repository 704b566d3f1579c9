"""What the tests of packing share: lines to pack, and what a packed file holds."""

import itertools
import json

import numpy as np
from aegis.data import document_offsets
from aegis.data.formats import describe
from aegis.data.token_formats import aegis_v1


def contents(path):
    """The ids of an aegis file, document by document; one document where none are recorded."""
    file = describe(path)
    aegis_v1.verify(path)
    ids = np.fromfile(path, file.dtype, file.tokens, offset=file.byte_offset)
    offsets = document_offsets(file)
    offsets = [0, file.tokens] if offsets is None else offsets
    return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def write_lines(path, texts, key="text"):
    path.write_text("".join(json.dumps({"id": 1, key: text}) + "\n" for text in texts))
    return path
