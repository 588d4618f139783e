"""Native CPU ops in C++: one library for x86-64 and ARM machines, with the same bits on every instruction set."""
