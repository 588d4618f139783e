"""The linears of the experts of a mixture."""
