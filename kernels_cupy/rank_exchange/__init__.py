"""Rows put together by the GPUs of several ranks, in each other's memory."""
