"""Task: one task or group of lm-eval with its number of worked examples; a plain value that enters a step's identity.

A task names definitions and holds none of their content: the version of lm-eval and the files of an own task are in the
identity separately. A new entry in `suites` therefore changes no other task.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Definition:
    """The definition of a task in lm-eval's format."""

    name: str
    """lm-eval's name of the task."""
    yaml: str
    """Path below the installed `lm_eval/tasks`; for an own task, below its folder of definitions."""
    items: str
    """Name of the items; two forms of a question share it."""
    settings: str = ""
    """Settings of the task's group that replace the definition's, as JSON; "" for none."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, or a group whose score is over the items of all its tasks."""

    name: str
    num_fewshot: int
    definitions: tuple[Definition, ...]
    max_new_tokens: int = 0
    """Longest generated answer in tokens; 0 where nothing is generated."""
    runs_code: bool = False
    """Whether a metric runs generated code."""
    is_own: bool = False
    """Whether the definitions are the user's."""

    @property
    def label(self) -> str:
        """Task and number of shots: `hellaswag_10shot`."""
        return f"{self.name}_{self.num_fewshot}shot"
