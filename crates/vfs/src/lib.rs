//! What a name or a handle stands for on disk: the Vfs trait, local directories and memory.
