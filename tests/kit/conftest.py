"""What the tests of the kits share lies in `wrong_drivers.py`; its assertions are explained as those of tests are."""

import pytest

pytest.register_assert_rewrite("wrong_drivers")
