"""Messages, sockets and shared arrays: everything that crosses a process boundary. Imports nothing else of this project."""
