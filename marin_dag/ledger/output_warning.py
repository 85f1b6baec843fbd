"""Output warning: what the readers of an output should know, though the output is what its config asks for.

A step states it with `StepContext.warn_about_output`. The record keeps it. The run shows it when the step is done and
once more at its end, and each later plan shows it beside the step.
"""

from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from marin_dag.store.redact import redact

MAX_SAMPLES = 3
SAMPLE_CHARACTERS = 160
TEXT_CHARACTERS = 400


class OutputWarning(BaseModel, frozen=True, extra="forbid"):
    """A warning about one output; its texts are one line each, without secrets."""

    text: str
    """The finding, its rule, and the limit that it passes."""
    samples: tuple[str, ...] = ()
    """Examples, at most `MAX_SAMPLES`."""
    file: str = ""
    """The file of the output that has more of them, relative to the output; "" if there is none."""

    def lines(self, output: str) -> Iterator[str]:
        """Yield the warning for a reader; `output` is the path or URL of the output."""
        yield self.text
        yield from (f"  such as: {sample}" for sample in self.samples)
        if self.file:
            yield f"  more in {output}/{self.file}"


def output_warning(text: str, samples: Iterable[str], file: str) -> OutputWarning:
    """Return a warning, cut to the length of a terminal, with at most three samples."""
    kept = tuple(_line(sample, SAMPLE_CHARACTERS) for _, sample in zip(range(MAX_SAMPLES), samples, strict=False))
    return OutputWarning(text=_line(text, TEXT_CHARACTERS), samples=kept, file=file)


def _line(text: str, most: int) -> str:
    """Return one printable line: a document may hold line breaks, and codes that a terminal obeys."""
    # Cut generously before and exactly after: a secret must not be cut in two before it is found.
    words = " ".join(redact(text[: 10 * most]).split())
    line = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words)
    return line if len(line) <= most else f"{line[: most - 1]}…"
