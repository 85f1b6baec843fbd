"""The picture in docs/index.md agrees with the imports of the code."""

from tests.docs.architecture import PICTURE, picture


def test_the_picture_is_the_one_that_the_imports_give() -> None:
    assert PICTURE.read_text() == picture(), "run: python -m tests.docs.architecture"
