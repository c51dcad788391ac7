//! Generates the bodies of the two functions from a type's definition.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::{Data, DataEnum, DeriveInput, Error, Expr, Fields, Ident, Lifetime, Result, Variant};

/// The two function bodies of one type.
struct Bodies {
    encode: TokenStream,
    decode: TokenStream,
}

/// Both impls of `input`.
pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    let message = message_lifetime(input)?;
    let bodies = match &input.data {
        Data::Struct(data) => struct_bodies(&data.fields),
        Data::Enum(data) if is_union(input)? => union_bodies(name, data)?,
        Data::Enum(data) => value_bodies(name, data)?,
        Data::Union(data) => {
            return Err(Error::new(data.union_token.span(), "an XDR union is an enum here"));
        }
    };
    let (own, lifetime) = match &message {
        Some(lifetime) => (quote!(<#lifetime>), lifetime.clone()),
        None => (TokenStream::new(), Lifetime::new("'xdr", name.span())),
    };
    let Bodies { encode, decode } = bodies;
    Ok(quote! {
        #[automatically_derived]
        impl #own ::curt_xdr::Encode for #name #own {
            #[inline]
            fn encode(&self, out: &mut ::std::vec::Vec<u8>) {
                let _ = &out;
                #encode
            }
        }
        #[automatically_derived]
        impl<#lifetime> ::curt_xdr::Decode<#lifetime> for #name #own {
            #[inline]
            fn decode(
                decoder: &mut ::curt_xdr::Decoder<#lifetime>,
            ) -> ::core::result::Result<Self, ::curt_xdr::DecodeError> {
                let _ = &decoder;
                #decode
            }
        }
    })
}

fn message_lifetime(input: &DeriveInput) -> Result<Option<Lifetime>> {
    let generics = &input.generics;
    if generics.type_params().next().is_some() || generics.const_params().next().is_some() {
        return Err(Error::new(generics.span(), "Xdr cannot be derived for generic types"));
    }
    let mut lifetimes = generics.lifetimes();
    let first = lifetimes.next().map(|parameter| parameter.lifetime.clone());
    match lifetimes.next() {
        Some(second) => Err(Error::new(second.span(), "a message has one lifetime")),
        None => Ok(first),
    }
}

fn is_union(input: &DeriveInput) -> Result<bool> {
    let mut union = false;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("xdr")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("union") {
                union = true;
                return Ok(());
            }
            Err(meta.error("`union` was expected"))
        })?;
    }
    Ok(union)
}

fn struct_bodies(fields: &Fields) -> Bodies {
    let members: Vec<_> = fields.members().collect();
    let encode = quote!(#(::curt_xdr::Encode::encode(&self.#members, out);)*);
    let decode = quote!(Ok(Self { #(#members: ::curt_xdr::Decode::decode(decoder)?),* }));
    Bodies { encode, decode }
}

fn value_bodies(name: &Ident, data: &DataEnum) -> Result<Bodies> {
    let mut variants = Vec::new();
    let mut values = Vec::new();
    for variant in &data.variants {
        let Some((_, value)) = &variant.discriminant else {
            return Err(Error::new(variant.span(), "the wire value must be written here: `= N`"));
        };
        if !matches!(variant.fields, Fields::Unit) {
            return Err(Error::new(variant.span(), "variants with fields need #[xdr(union)] on the enum"));
        }
        variants.push(&variant.ident);
        values.push(value);
    }
    let type_name = name.to_string();
    Ok(Bodies {
        encode: quote! {
            let value: u32 = match self { #(Self::#variants => #values),* };
            ::curt_xdr::Encode::encode(&value, out);
        },
        decode: quote! {
            match decoder.u32()? {
                #(#values => Ok(Self::#variants),)*
                value => Err(::curt_xdr::DecodeError::BadValue { name: #type_name, value }),
            }
        },
    })
}

/// The discriminants that select a variant of a union.
enum Arm {
    Case(Expr),
    Default,
}

fn arm(variant: &Variant) -> Result<Arm> {
    let mut arm = None;
    for attribute in variant.attrs.iter().filter(|attribute| attribute.path().is_ident("xdr")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("default") {
                arm = Some(Arm::Default);
                return Ok(());
            }
            if meta.path.is_ident("case") {
                arm = Some(Arm::Case(meta.value()?.parse()?));
                return Ok(());
            }
            Err(meta.error("`case = N` or `default` was expected"))
        })?;
    }
    arm.ok_or_else(|| {
        Error::new(variant.span(), "a union's variant needs #[xdr(case = N)] or #[xdr(default)]")
    })
}

fn union_bodies(name: &Ident, data: &DataEnum) -> Result<Bodies> {
    let mut encode_arms = Vec::new();
    let mut decode_arms = Vec::new();
    let mut default = None;
    for variant in &data.variants {
        let ident = &variant.ident;
        let members: Vec<_> = variant.fields.members().collect();
        let bound: Vec<_> = (0..members.len()).map(|index| format_ident!("field_{index}")).collect();
        let head = match arm(variant)? {
            Arm::Case(value) => {
                decode_arms.push(quote! {
                    #value => Ok(Self::#ident { #(#members: ::curt_xdr::Decode::decode(decoder)?),* })
                });
                quote!(::curt_xdr::Encode::encode(&{ let value: u32 = #value; value }, out);)
            }
            Arm::Default => {
                let Some((first, others)) = members.split_first() else {
                    return Err(Error::new(variant.span(), "the default variant holds the discriminant"));
                };
                default = Some(quote! {
                    value => Ok(Self::#ident {
                        #first: value, #(#others: ::curt_xdr::Decode::decode(decoder)?),*
                    })
                });
                TokenStream::new()
            }
        };
        encode_arms.push(quote! {
            Self::#ident { #(#members: #bound),* } => {
                #head
                #(::curt_xdr::Encode::encode(#bound, out);)*
            }
        });
    }
    let type_name = name.to_string();
    let default = default.unwrap_or_else(
        || quote!(value => Err(::curt_xdr::DecodeError::BadValue { name: #type_name, value })),
    );
    Ok(Bodies {
        encode: quote!(match self { #(#encode_arms),* }),
        decode: quote!(match decoder.u32()? { #(#decode_arms,)* #default }),
    })
}
