"""`helexa verify` shows that replies do not depend on what else the service does. Here: what is asked, what is compared, and
what counts as a witness. helexa/commands/verify.py starts the services."""
