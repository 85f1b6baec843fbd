"""Parameters of the search for near duplicates, as a plain value; `runtime.text.dedup` applies them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class MinHash:
    """Parameters of MinHash; the defaults are FineWeb's (arXiv:2406.17557, appendix E.1)."""

    ngram_words: int = 5
    num_bands: int = 14
    rows_per_band: int = 8
    min_similarity: float = 0.8
    """Estimated from num_bands * rows_per_band hashes; the standard error is 0.04 at the default."""

    def __post_init__(self) -> None:
        for field in ("ngram_words", "num_bands", "rows_per_band"):
            if getattr(self, field) < 1:
                raise ValueError(f"MinHash.{field} is {getattr(self, field)}. Set it to 1 or more.")
        if not 0 < self.min_similarity <= 1:
            raise ValueError(f"MinHash.min_similarity is {self.min_similarity}. Set it above 0, up to 1.")

    @property
    def num_hashes(self) -> int:
        return self.num_bands * self.rows_per_band
