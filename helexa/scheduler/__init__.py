"""The scheduler: requests in, step plans out. Everything here but process.py and control.py is pure."""
