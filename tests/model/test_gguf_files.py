"""The reader on a real file against the gguf package's: about 5 seconds, nearly all the latter."""

from __future__ import annotations

from pathlib import Path

import gguf

from octavo.core.gguf import GgufFile


def test_a_real_file_lists_what_the_gguf_package_lists(smollm2_path: Path) -> None:
    reader = gguf.GGUFReader(smollm2_path)
    with GgufFile.open(smollm2_path) as file:
        for tensor in reader.tensors:
            info = file.tensors[tensor.name]
            assert (info.offset_bytes, info.size_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert len(file.tensors) == len(reader.tensors)
        tokens = file.strings("tokenizer.ggml.tokens")
        assert tokens[:2] == ["<|endoftext|>", "<|im_start|>"]
        assert len(tokens) == file.metadata.array_length("tokenizer.ggml.tokens") == 49152
