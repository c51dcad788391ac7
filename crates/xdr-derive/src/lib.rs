//! Derives XDR codecs as straight-line code.
//!
//! `#[derive(Xdr)]` writes `Encode` and `Decode` of `curt_xdr` for
//! - a struct: its fields in order (at most one lifetime parameter, the message's);
//! - an enum of unit variants with explicit discriminants: the wire value is the discriminant, any
//!   other is an error;
//! - an enum marked `#[xdr(union)]`: each variant says its discriminant, `#[xdr(case = 1)]`, and at
//!   most one, last, is `#[xdr(default)]`: its first field is then the discriminant itself.
//!
//! It generates syntax only; the rules of encoding are in `curt_xdr`.

mod shape;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// See the crate's documentation.
#[proc_macro_derive(Xdr, attributes(xdr))]
pub fn derive_xdr(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    shape::expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
