"""Source for people to compare: without docstrings wherever statements are; the tree that is read stays as it was."""

import ast

from marin_dag.code.normal_form import readable

SOURCE = '''
class Cache:
    """A docstring."""
    def read(self, path):
        """Another."""
        try:
            "no code either"
        except OSError:
            """One in a handler."""
            raise
        else:
            "the only one of an else"
        match path:
            case "a":
                """One in a case."""
                return lambda: "kept"
'''
READABLE = """class Cache:

    def read(self, path):
        try:
            pass
        except OSError:
            raise
        match path:
            case 'a':
                return lambda: 'kept'"""


def test_docstrings_are_removed_at_every_depth_and_the_tree_keeps_them() -> None:
    module = ast.parse(SOURCE)
    before = ast.dump(module)
    assert readable(module.body, {}) == READABLE
    assert ast.dump(module) == before
