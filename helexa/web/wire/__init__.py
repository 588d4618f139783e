"""One file a wire format: a decoded body to a typed request, events to documents. Pure."""
