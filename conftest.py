"""Settings of all tests, those of the plugins too: Hypothesis judges values, and no durations."""

import hypothesis

# By default an example that takes 200 ms fails. On a busy machine any may.
hypothesis.settings.register_profile("flamestream", deadline=None)
hypothesis.settings.load_profile("flamestream")
