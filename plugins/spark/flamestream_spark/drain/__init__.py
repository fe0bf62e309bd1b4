"""Drain: the last operations before a sink run in tasks of Spark, when the workers have ended.

They need nothing but their item, so every core may run them. Workers release the items in front of them, which are held
in a place that executors reach; the outputs go from there to the sink, in order, as if the workers had made them.
"""
