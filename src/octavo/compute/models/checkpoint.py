"""A model file as a family reads it: typed configuration, and tensors checked by shape.

Every tensor that a family uses is asked for here, so that at the end the tensors nobody asked for
are known: a program never leaves a bias or a factor of the checkpoint out in silence.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.errors import ModelFileError
from octavo.core.gguf import GgufFile

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
HEAD_NORM = "output_norm.weight"
ROPE_FACTORS = "rope_freqs.weight"

_INCOMPLETE = "the file is damaged or incomplete: download it again"


@dataclass(frozen=True, slots=True)
class Config:
    """The numbers of a decoder-only transformer; sizes in elements, `context` in tokens."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_base: float
    rope_scale: float
    eps: float
    context: int
    vocabulary: int

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


class Checkpoint:
    """Metadata and tensors of one file, read under the prefix of its architecture."""

    def __init__(self, file: GgufFile, family: str) -> None:
        self.file = file
        self.family = family
        self._used: set[str] = set()

    def key(self, name: str) -> str:
        return f"{self.family}.{name}"

    def has(self, name: str) -> bool:
        return self.key(name) in self.file.metadata

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """An integer under the family's prefix; the default stands in for a missing key."""
        if default is not None and not self.has(name):
            return default
        return self.file.integer(self.key(name), low, high)

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number under the family's prefix."""
        if default is not None and not self.has(name):
            return default
        return self.file.number(self.key(name), low, high)

    def heads(self, name: str, layers: int, default: int | None = None) -> int:
        """A head count, which some files give once a layer; all layers must agree."""
        key = self.key(name)
        if not self.has(name) or self.file.metadata.array_length(key) is None:
            return self.integer(name, 1, 4096, default)
        counts = self.file.array(key)
        first = counts[0] if counts else None
        if len(counts) != layers or not isinstance(first, int) or not 1 <= first <= 4096:
            raise ModelFileError(
                "bad head counts",
                field=key,
                expected=f"{layers} integers from 1",
                found=f"{len(counts)} values beginning with {first!r}",
                remedy=_INCOMPLETE,
            )
        if any(count != first for count in counts):
            raise ModelFileError(
                "layers with different head counts are not supported",
                field=key,
                expected="one count for all layers",
                found=", ".join(str(count) for count in counts[:8]),
            )
        return first

    def require(self, name: str, *shape: int) -> str:
        """The name again, once the tensor is known to be there with this shape."""
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise ModelFileError(
                "the tensor is missing",
                field=name,
                expected=f"shape {shape}",
                found="nothing",
                remedy=_INCOMPLETE,
            )
        if tensor.shape != shape:
            raise ModelFileError(
                "the tensor has a wrong shape",
                field=name,
                expected=f"{shape}",
                found=f"{tensor.shape}",
                remedy=_INCOMPLETE,
            )
        self._used.add(name)
        return name

    def optional(self, name: str, *shape: int) -> str | None:
        """As `require`, or None where the file has no such tensor."""
        return self.require(name, *shape) if name in self.file.tensors else None

    def rows(self, name: str, width: int) -> int:
        """Rows of a matrix whose width is known."""
        tensor = self.file.tensors.get(name)
        rows = tensor.shape[0] if tensor is not None and len(tensor.shape) == 2 else 1
        self.require(name, rows, width)
        return rows

    def refuse_unused(self) -> None:
        """Raise ModelFileError if the file has a tensor that no operator uses."""
        unused = [name for name in self.file.tensors if name not in self._used]
        if unused:
            raise ModelFileError(
                f"the tensor is not part of the {self.family} family",
                field=unused[0],
                expected="no other tensors",
                found=f"{len(unused)} unknown",
                remedy="this variant of the model is not supported",
            )


def read_config(checkpoint: Checkpoint) -> Config:
    """Read and check what all families share."""
    _refuse_unsupported(checkpoint)
    layers = checkpoint.integer("block_count", 1, len(checkpoint.file.tensors))
    hidden = checkpoint.integer("embedding_length", 1, 2**20)
    heads = checkpoint.heads("attention.head_count", layers)
    kv_heads = checkpoint.heads("attention.head_count_kv", layers, default=heads)
    if heads % kv_heads:
        raise ModelFileError(
            "heads do not share K and V evenly",
            field=checkpoint.key("attention.head_count_kv"),
            expected=f"a divisor of {heads}",
            found=f"{kv_heads}",
            remedy=_INCOMPLETE,
        )
    head_dim = _head_dim(checkpoint, hidden, heads)
    rope_dims = checkpoint.integer("rope.dimension_count", 2, head_dim, default=head_dim)
    if rope_dims % 2:
        raise ModelFileError(
            "rotated dimensions come in pairs",
            field=checkpoint.key("rope.dimension_count"),
            expected="an even number",
            found=f"{rope_dims}",
            remedy=_INCOMPLETE,
        )
    return Config(
        layers=layers,
        hidden=hidden,
        feed_forward=checkpoint.integer("feed_forward_length", 1, 2**24),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_dims=rope_dims,
        rope_base=checkpoint.number("rope.freq_base", 1.0, 1e12, default=10_000.0),
        rope_scale=_rope_scale(checkpoint),
        eps=checkpoint.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        context=checkpoint.integer("context_length", 1, 2**30),
        vocabulary=_vocabulary(checkpoint, hidden),
    )


def _refuse_unsupported(checkpoint: Checkpoint) -> None:
    if "split.count" in checkpoint.file.metadata and checkpoint.file.integer("split.count") > 1:
        raise ModelFileError(
            "the file is one part of a split model",
            field="split.count",
            expected="1",
            found=f"{checkpoint.file.integer('split.count')}",
            remedy="join the parts into one file first",
        )
    if checkpoint.integer("expert_count", 0, 2**16, default=0) > 0:
        raise ModelFileError(
            "mixtures of experts are not supported",
            field=checkpoint.key("expert_count"),
            expected="0",
            found=f"{checkpoint.integer('expert_count', 0, 2**16)}",
        )


def _head_dim(checkpoint: Checkpoint, hidden: int, heads: int) -> int:
    if not checkpoint.has("attention.key_length") and hidden % heads:
        raise ModelFileError(
            "the hidden size does not divide into heads",
            field=checkpoint.key("attention.head_count"),
            expected=f"a divisor of {hidden}",
            found=f"{heads}",
            remedy=_INCOMPLETE,
        )
    head_dim = checkpoint.integer("attention.key_length", 2, 4096, default=hidden // heads)
    value_dim = checkpoint.integer("attention.value_length", 2, 4096, default=head_dim)
    if value_dim != head_dim:
        raise ModelFileError(
            "keys and values of different sizes are not supported",
            field=checkpoint.key("attention.value_length"),
            expected=f"{head_dim}",
            found=f"{value_dim}",
        )
    return head_dim


def _rope_scale(checkpoint: Checkpoint) -> float:
    """Linear position scaling (Chen et al. 2023), also meant where only a factor is given."""
    kind = "linear"
    if checkpoint.has("rope.scaling.type"):
        kind = checkpoint.file.text(checkpoint.key("rope.scaling.type"))
    if kind not in ("none", "linear"):
        raise ModelFileError(
            "the kind of rope scaling is not supported",
            field=checkpoint.key("rope.scaling.type"),
            expected="none or linear",
            found=kind[:60],
        )
    older_name = checkpoint.number("rope.scale_linear", 0.0, 1e6, default=1.0)
    factor = checkpoint.number("rope.scaling.factor", 0.0, 1e6, default=older_name)
    # Converters write 0 for "not scaled".
    return 1.0 / factor if kind == "linear" and factor > 0.0 else 1.0


def _vocabulary(checkpoint: Checkpoint, hidden: int) -> int:
    rows = checkpoint.rows(EMBEDDING, hidden)
    key = "tokenizer.ggml.tokens"
    metadata = checkpoint.file.metadata
    if key not in metadata:
        raise ModelFileError(
            "the metadata key is missing",
            field=key,
            expected=f"an array of {rows} tokens",
            found="nothing",
            remedy=_INCOMPLETE,
        )
    tokens = metadata.array_length(key)
    if tokens != rows:
        raise ModelFileError(
            "the vocabulary does not fit the embedding",
            field=key,
            expected=f"{rows} tokens, the rows of {EMBEDDING}",
            found="no array" if tokens is None else f"{tokens}",
            remedy=_INCOMPLETE,
        )
    return rows
