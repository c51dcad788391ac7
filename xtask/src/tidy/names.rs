//! Checks of definitions: types have unique names, parameters are not tuples whose fields are used,
//! fields have names, and functions are short.

use std::collections::BTreeMap;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Expr, Fields, FnArg, GenericArgument, ItemEnum, ItemImpl, ItemMod, ItemStruct, ItemTrait, ItemUnion,
    Member, Pat, PathArguments, Signature, Type,
};

use super::{Complaints, RepositoryFile};

/// Lines of a function, from `fn` to its closing brace, above which tidy advises to divide it.
const FUNCTION_LINES_GUIDE: usize = 70;
/// Lines of a function of a test, which may be a table.
const TEST_LINES_GUIDE: usize = 85;
/// Maximum percentage of types that share their name with another type.
const SHARED_PERCENT_MAX: usize = 10;
/// Names that many crates use for the same purpose.
const COMMON: [&str; 4] = ["Config", "Error", "Limits", "Options"];

/// The definition of a type.
struct TypeDefinition<'a> {
    file: &'a RepositoryFile,
    line: usize,
}

/// The types defined in the product's sources, by name.
type Types<'a> = BTreeMap<String, Vec<TypeDefinition<'a>>>;

/// Visits a file's definitions.
struct Definitions<'a, 'c> {
    file: &'a RepositoryFile,
    /// Whether it is in a test: only lengths are checked there, because types of tests are local.
    is_in_test: bool,
    /// Whether it is in an implementation of a trait, which has the trait's parameters.
    is_in_trait_impl: bool,
    types: &'c mut Types<'a>,
    complaints: &'c mut Complaints,
}

pub(super) fn check(files: &[RepositoryFile], complaints: &mut Complaints) {
    let mut types = Types::new();
    for file in files.iter().filter(|file| file.has_ending("rs")) {
        match syn::parse_file(&file.text) {
            Ok(parsed) => Definitions {
                file,
                is_in_test: is_test(file),
                is_in_trait_impl: false,
                types: &mut types,
                complaints,
            }
            .visit_file(&parsed),
            Err(error) => complaints.add(&file.path, 1, format!("is not Rust: {error}")),
        }
    }
    check_shared(&types, complaints);
}

/// Reports all shared names if there are too many.
fn check_shared(types: &Types<'_>, complaints: &mut Complaints) {
    let all: usize = types.values().map(Vec::len).sum();
    let shared: Vec<_> =
        types.iter().filter(|(name, files)| files.len() > 1 && !COMMON.contains(&name.as_str())).collect();
    let sharing: usize = shared.iter().map(|(_, files)| files.len()).sum();
    if sharing * 100 <= all * SHARED_PERCENT_MAX {
        return;
    }
    for (name, files) in shared {
        for definition in files {
            let others = files.len() - 1;
            complaints.add(
                &definition.file.path,
                definition.line,
                format!("{others} other types are named {name}; {sharing} of {all} types share a name"),
            );
        }
    }
}

impl Definitions<'_, '_> {
    fn add_type(&mut self, name: &syn::Ident) {
        if !self.is_in_test {
            let definition = TypeDefinition { file: self.file, line: name.span().start().line };
            self.types.entry(distinctive(self.file, &name.to_string())).or_default().push(definition);
        }
    }

    fn check_function(&mut self, signature: &Signature, body: &syn::Block) {
        self.check_length(signature, body);
        if !self.is_in_test {
            self.check_tuples(signature, body);
        }
    }

    /// Reports a parameter that is a tuple and is taken apart: by a pattern of the parameter, of a
    /// `let` or of a `match`, or by its fields' numbers.
    fn check_tuples(&mut self, signature: &Signature, body: &syn::Block) {
        let mut tuples = Vec::new();
        let mut is_taken_apart = false;
        for argument in &signature.inputs {
            let FnArg::Typed(typed) = argument else { continue };
            match &*typed.pat {
                Pat::Tuple(_) => is_taken_apart = true,
                Pat::Ident(name) if !self.is_in_trait_impl && is_tuple(&typed.ty) => {
                    tuples.push(name.ident.to_string())
                }
                _ => {}
            }
        }
        let mut fields = TupleFields { tuples: &tuples, are_used: false };
        fields.visit_block(body);
        if is_taken_apart || fields.are_used {
            self.complaints.add(
                &self.file.path,
                signature.span().start().line,
                format!(
                    "fn {} takes a tuple apart as a parameter: name a struct, or take fewer",
                    signature.ident
                ),
            );
        }
    }

    /// Reports a struct with several fields that have numbers instead of names.
    fn check_fields(&mut self, defined: &ItemStruct) {
        let Fields::Unnamed(fields) = &defined.fields else { return };
        let is_marker = |field: &&syn::Field| {
            let Type::Path(path) = &field.ty else { return false };
            path.path.segments.last().is_some_and(|segment| segment.ident == "PhantomData")
        };
        if !self.is_in_test && fields.unnamed.iter().filter(|field| !is_marker(field)).count() > 1 {
            let what = format!("struct {} has fields without names", defined.ident);
            self.complaints.add(&self.file.path, defined.span().start().line, what);
        }
    }

    fn check_length(&mut self, signature: &Signature, body: &syn::Block) {
        let start = signature.span().start().line;
        let length = body.span().end().line - start + 1;
        let guide = if self.is_in_test { TEST_LINES_GUIDE } else { FUNCTION_LINES_GUIDE };
        if length > guide {
            let name = &signature.ident;
            let what = format!("fn {name} has {length} lines; {guide} are the guide");
            self.complaints.advise(&self.file.path, start, what);
        }
    }
}

impl<'ast> Visit<'ast> for Definitions<'_, '_> {
    fn visit_item_struct(&mut self, defined: &'ast ItemStruct) {
        self.add_type(&defined.ident);
        self.check_fields(defined);
    }

    fn visit_item_enum(&mut self, defined: &'ast ItemEnum) {
        self.add_type(&defined.ident);
    }

    fn visit_item_union(&mut self, defined: &'ast ItemUnion) {
        self.add_type(&defined.ident);
    }

    fn visit_item_trait(&mut self, defined: &'ast ItemTrait) {
        self.add_type(&defined.ident);
        visit::visit_item_trait(self, defined);
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let outside = self.is_in_test;
        self.is_in_test |= is_for_tests(&module.attrs);
        visit::visit_item_mod(self, module);
        self.is_in_test = outside;
    }

    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        let outside = self.is_in_trait_impl;
        self.is_in_trait_impl = block.trait_.is_some();
        visit::visit_item_impl(self, block);
        self.is_in_trait_impl = outside;
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.check_function(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.check_function(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.check_function(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

/// The uses of fields of tuples in a function: `x.0`, `let (a, b) = x`, `match x { (a, b) => … }`,
/// and for an option `if let Some((a, b)) = x` and `x.map(|(a, b)| …)`.
struct TupleFields<'a> {
    /// The parameters whose types are tuples.
    tuples: &'a [String],
    are_used: bool,
}

impl TupleFields<'_> {
    /// Whether an expression is one of the parameters, also by reference or by a method that keeps
    /// its contents.
    fn is_tuple(&self, expression: &Expr) -> bool {
        match expression {
            Expr::Path(path) => {
                path.path.get_ident().is_some_and(|name| self.tuples.contains(&name.to_string()))
            }
            Expr::Reference(reference) => self.is_tuple(&reference.expr),
            Expr::Unary(unary) => self.is_tuple(&unary.expr),
            Expr::Try(tried) => self.is_tuple(&tried.expr),
            Expr::MethodCall(call) => {
                SAME_CONTENTS.iter().any(|method| call.method == method) && self.is_tuple(&call.receiver)
            }
            _ => false,
        }
    }
}

impl<'ast> Visit<'ast> for TupleFields<'_> {
    fn visit_expr_field(&mut self, field: &'ast syn::ExprField) {
        self.are_used |= matches!(field.member, Member::Unnamed(_)) && self.is_tuple(&field.base);
        visit::visit_expr_field(self, field);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let value = local.init.as_ref().map(|init| &*init.expr);
        self.are_used |= takes_apart(&local.pat) && value.is_some_and(|value| self.is_tuple(value));
        visit::visit_local(self, local);
    }

    fn visit_expr_let(&mut self, condition: &'ast syn::ExprLet) {
        self.are_used |= takes_apart(&condition.pat) && self.is_tuple(&condition.expr);
        visit::visit_expr_let(self, condition);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        let takes_apart = expression.arms.iter().any(|arm| takes_apart(&arm.pat));
        self.are_used |= takes_apart && self.is_tuple(&expression.expr);
        visit::visit_expr_match(self, expression);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let takes_apart = |argument: &Expr| match argument {
            Expr::Closure(closure) => closure.inputs.iter().any(takes_apart),
            _ => false,
        };
        self.are_used |= call.args.iter().any(takes_apart) && self.is_tuple(&call.receiver);
        visit::visit_expr_method_call(self, call);
    }
}

/// Methods of an option that keep what it contains.
const SAME_CONTENTS: [&str; 8] =
    ["as_mut", "as_ref", "cloned", "copied", "expect", "filter", "unwrap_or", "unwrap_or_default"];

/// Whether a pattern takes a tuple apart, also that of an option or of a reference.
fn takes_apart(pattern: &Pat) -> bool {
    match pattern {
        Pat::Tuple(_) => true,
        Pat::Or(alternatives) => alternatives.cases.iter().any(takes_apart),
        Pat::Paren(inner) => takes_apart(&inner.pat),
        Pat::Reference(reference) => takes_apart(&reference.pat),
        Pat::TupleStruct(variant) => variant.path.is_ident("Some") && variant.elems.iter().any(takes_apart),
        Pat::Type(typed) => takes_apart(&typed.pat),
        _ => false,
    }
}

/// A type's name without what does not distinguish it: its crate's name in front, and a number
/// at the end. In `proto` numbers are part of the names of the RFCs.
fn distinctive(file: &RepositoryFile, name: &str) -> String {
    let folders: Vec<_> = file.path.iter().filter_map(|folder| folder.to_str()).collect();
    let source = folders.iter().position(|folder| *folder == "src").unwrap_or(0);
    let package = source.checked_sub(1).map_or("", |index| folders[index]);
    let is_prefix = |prefix: &str| prefix.eq_ignore_ascii_case(package);
    let without_package = match name.split_at_checked(package.len()) {
        Some((prefix, rest)) if is_prefix(prefix) && rest.starts_with(char::is_uppercase) => rest,
        Some(_) | None => name,
    };
    match package {
        "proto" => without_package.to_owned(),
        _ => without_package.trim_end_matches(|last: char| last.is_ascii_digit()).to_owned(),
    }
}

/// Whether a type is a tuple, a reference to one, or an option of one.
fn is_tuple(parameter: &Type) -> bool {
    match parameter {
        Type::Tuple(tuple) => !tuple.elems.is_empty(),
        Type::Reference(reference) => is_tuple(&reference.elem),
        Type::Path(path) => path.path.segments.last().is_some_and(is_option_of_tuple),
        _ => false,
    }
}

fn is_option_of_tuple(segment: &syn::PathSegment) -> bool {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return false };
    let is_tuple =
        |argument: &GenericArgument| matches!(argument, GenericArgument::Type(inner) if is_tuple(inner));
    segment.ident == "Option" && arguments.args.iter().any(is_tuple)
}

/// Whether a file is a test or part of one.
fn is_test(file: &RepositoryFile) -> bool {
    let mut folders = file.path.components().map(|part| part.as_os_str());
    file.name() == "tests.rs" || folders.any(|folder| folder == "tests" || folder == "benches")
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg") && list.is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> RepositoryFile {
        RepositoryFile { path: path.into(), text: text.into() }
    }

    fn complaints(files: &[RepositoryFile]) -> Vec<String> {
        let mut complaints = Complaints::default();
        check(files, &mut complaints);
        complaints.violations
    }

    #[test]
    fn tuple_patterns_are_found_in_functions_methods_and_traits_alone() {
        let text = "fn a((x, y): (u8, u8)) {}\ntrait T { fn b(&self, (x, y): (u8, u8)) {} }\n\
            struct S;\nimpl S { fn c((x,): (u8,)) { [(1, 2)].map(|(x, y)| x + y); } }\nfn d(pair: (u8, u8)) {}\n";
        let found = complaints(&[file("src/a.rs", text)]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[1].starts_with("src/a.rs:2:"));
    }

    #[test]
    fn structs_of_several_fields_without_names_are_found() {
        let text = "struct Pair(u8, u8);\nstruct One(u8);\nstruct Named { a: u8, b: u8 }\n\
            struct Marked<'a>(u8, PhantomData<&'a ()>);\n#[cfg(test)]\nmod tests { struct P(u8, u8); }\n";
        assert_eq!(
            complaints(&[file("src/a.rs", text)]),
            ["src/a.rs:1: struct Pair has fields without names"]
        );
    }

    #[test]
    fn tuples_taken_apart_in_the_body_are_found() {
        let text = "fn a(x: (u8, u8)) -> u8 { let (y, z) = x; y + z }\n\
            fn b(x: &(u8, u8)) -> u8 { match *x { (0, y) => y, (y, _) => y } }\n\
            fn c(x: (u8, u8)) -> u8 { if let (0, y) = &x { *y } else { 0 } }\n\
            fn d(x: (u8, u8)) -> u8 { let (y, z) = f(x); match (y, z) { (a, b) => a + b } }\n";
        let found = complaints(&[file("src/a.rs", text)]);
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn tuples_whose_fields_are_used_by_number_are_found_as_parameters_alone() {
        let text = "fn a(x: (u8, u8)) -> u8 { x.0 }\nfn b(x: &(u8, u8)) -> u8 { f(|| x.1.max(1)) }\n\
            struct S(u8);\nimpl S { fn c(&self, y: &S, z: (u8, u8)) -> u8 { g(z); self.0 + y.0 } }\n\
            fn d(pairs: &[(u8, u8)]) -> u8 { pairs.iter().map(|pair| pair.0).sum() }\n\
            impl T for S { fn f(x: (u8, u8)) -> u8 { x.0 } }\n\
            #[cfg(test)]\nmod tests { fn e(x: (u8, u8)) -> u8 { x.0 } }\n";
        let found = complaints(&[file("src/a.rs", text)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("src/a.rs:1:") && found[1].starts_with("src/a.rs:2:"), "{found:?}");
    }

    #[test]
    fn tuples_in_options_and_references_that_are_taken_apart_are_found() {
        let found = |parameter: &str, body: &str| {
            complaints(&[file("src/a.rs", &format!("fn a(x: {parameter}) -> u8 {{ {body} }}\n"))]).len()
        };
        for (parameter, body) in [
            ("Option<(u8, u8)>", "if let Some((y, 0)) = x { y } else { 0 }"),
            ("Option<&(u8, u8)>", "match x { Some(&(y, _)) => y, None => 0 }"),
            ("&Option<(u8, u8)>", "let Some((y, _)) = x else { return 0 }; *y"),
            ("Option<(u8, u8)>", "x.map(|(y, z)| y + z).unwrap_or(0)"),
            ("Option<(u8, u8)>", "x.as_ref().filter(|x| true).map_or(0, |&(y, _)| y)"),
            ("Option<(u8, u8)>", "let (y, _) = x.unwrap_or((0, 0)); y"),
            ("std::option::Option<(u8, u8)>", "(x?).0 + x.unwrap_or_default().0"),
            ("&mut &(u8, u8)", "x.0"),
        ] {
            assert_eq!(found(parameter, body), 1, "{parameter}: {body}");
        }
        for (parameter, body) in [
            ("Option<(u8, u8)>", "f(x)"),
            ("Option<(u8, u8)>", "x.map_or(0, f)"),
            ("Option<u8>", "x.map(|y| f((y, 1))).unwrap_or(0)"),
            ("Vec<(u8, u8)>", "x.iter().map(|(y, _)| y).sum()"),
            ("Result<(u8, u8), u8>", "match x { Ok((y, _)) => y, Err(y) => y }"),
        ] {
            assert_eq!(found(parameter, body), 0, "{parameter}: {body}");
        }
    }

    fn function(lines: usize) -> String {
        format!(
            "impl X {{\n    pub(crate) fn long() {{\n{}    }}\n}}\ntrait T {{\n    fn short();\n}}\n",
            "        1;\n".repeat(lines - 2)
        )
    }

    #[test]
    fn a_function_above_the_guide_causes_advice_and_no_complaint() {
        for (path, guide) in [("src/a.rs", FUNCTION_LINES_GUIDE), ("tests/a.rs", TEST_LINES_GUIDE)] {
            for (lines, is_advised) in [(guide, false), (guide + 1, true), (5 * guide, true)] {
                let mut complaints = Complaints::default();
                check(&[file(path, &function(lines))], &mut complaints);
                let advice = format!("{path}:2: advice: fn long has {lines} lines; {guide} are the guide");
                assert_eq!(complaints.advice, if is_advised { vec![advice] } else { Vec::new() });
                assert_eq!(complaints.violations, [""; 0]);
            }
        }
    }

    #[test]
    fn a_crates_name_or_a_number_makes_no_new_name() {
        let in_file = |path: &str, name: &str| distinctive(&file(path, ""), name);
        assert_eq!(in_file("crates/fuse/src/session/a.rs", "FuseState"), "State");
        assert_eq!(in_file("crates/fuse/src/a.rs", "Fuse"), "Fuse");
        assert_eq!(in_file("crates/fuse/src/a.rs", "Fused"), "Fused");
        assert_eq!(in_file("crates/server/src/a.rs", "FuseState2"), "FuseState");
        assert_eq!(in_file("crates/proto/src/nfs4/a.rs", "NfsTime4"), "NfsTime4");
        assert_eq!(in_file("curt/src/main.rs", "CurtCommand"), "Command");
    }

    #[test]
    fn a_tenth_of_the_types_may_share_their_names() {
        let many: String = ('a'..'s').map(|letter| format!("struct S{letter};\n")).collect();
        let all = |last: &str| {
            [
                file("src/a.rs", &format!("{many}enum State {{}}\n")),
                file("src/b.rs", last),
                file("tests/c.rs", "struct State;"),
                file("src/d.rs", "struct Error;\n#[cfg(test)]\nmod tests { struct State; }"),
            ]
        };
        assert_eq!(complaints(&all("struct State;\nstruct Error;")), [""; 0]);
        let found = complaints(&all("struct State;\nmod x { struct State; }"));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("src/a.rs:19:"), "{found:?}");
    }
}
