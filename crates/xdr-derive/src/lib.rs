//! Derives XDR codecs as straight-line code.
