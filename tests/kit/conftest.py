"""Shared assertions of `wrong_drivers.py`, explained as those of tests."""

import pytest

pytest.register_assert_rewrite("wrong_drivers")
