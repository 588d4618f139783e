"""Text to token ids and back. Pure: no HTTP, no sockets, no clock but the one a chat template may ask for."""
