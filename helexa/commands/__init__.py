"""What the subcommands of `helexa` do, one file each; helexa/cli.py parses their arguments."""
