"""One Hypothesis profile for the suite: the same examples in each run, and no deadline, since a first call compiles."""

from hypothesis import settings

settings.register_profile("suite", derandomize=True, deadline=None, print_blob=True, max_examples=50)
settings.load_profile("suite")
