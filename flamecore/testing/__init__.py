"""The public test kit: what a driver must do, as checks that need no test runner and as classes for pytest."""
