"""`helexa bench` loads a server the way clients do, and says how fast it answers. helexa/commands/bench.py puts the parts
together."""
