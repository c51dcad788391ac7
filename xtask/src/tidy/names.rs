//! Names: a type has one of its own, and a parameter is not a tuple taken apart.

use std::collections::BTreeMap;

use syn::{FnArg, ImplItem, Item, Pat, Signature, TraitItem};

use super::{Complaints, RepositoryFile};

/// The most types of a hundred that may share their name with another type.
const SHARED_PERCENT_MAX: usize = 10;
/// Names that many crates have for the same idea.
const COMMON: [&str; 4] = ["Config", "Error", "Limits", "Options"];

/// What the product's sources define. Tests are not counted: their helpers are local to them.
#[derive(Default)]
struct Definitions<'a> {
    /// Name of each type, and the files that define one of that name.
    types: BTreeMap<String, Vec<&'a RepositoryFile>>,
    /// Functions with a tuple pattern as a parameter.
    tuples: Vec<(&'a RepositoryFile, String)>,
}

pub(super) fn check(files: &[RepositoryFile], complaints: &mut Complaints) {
    let mut found = Definitions::default();
    let sources = files.iter().filter(|file| file.has_ending("rs"));
    for file in sources.filter(|file| !is_test(file)) {
        match syn::parse_file(&file.text) {
            Ok(parsed) => found.items(file, &parsed.items),
            Err(error) => complaints.add(&file.path, 1, format!("is not Rust: {error}")),
        }
    }
    for (file, function) in &found.tuples {
        complaints.add(
            &file.path,
            line_of(file, &format!("fn {function}")),
            format!("fn {function} takes a tuple apart as a parameter: name a struct, or take fewer"),
        );
    }
    check_shared(&found.types, complaints);
}

/// Complains of every shared name once there are too many.
fn check_shared(types: &BTreeMap<String, Vec<&RepositoryFile>>, complaints: &mut Complaints) {
    let all: usize = types.values().map(Vec::len).sum();
    let shared: Vec<_> = types
        .iter()
        .filter(|(name, files)| files.len() > 1 && !COMMON.contains(&name.as_str()))
        .collect();
    let sharing: usize = shared.iter().map(|(_, files)| files.len()).sum();
    if sharing * 100 <= all * SHARED_PERCENT_MAX {
        return;
    }
    for (name, files) in shared {
        for file in files {
            let others = files.len() - 1;
            complaints.add(
                &file.path,
                line_of(file, name),
                format!("{others} other types are named {name}; {sharing} of {all} types share a name"),
            );
        }
    }
}

impl<'a> Definitions<'a> {
    fn items(&mut self, file: &'a RepositoryFile, items: &[Item]) {
        for item in items {
            self.item(file, item);
        }
    }

    fn item(&mut self, file: &'a RepositoryFile, item: &Item) {
        match item {
            Item::Struct(defined) => self.named(file, &defined.ident),
            Item::Enum(defined) => self.named(file, &defined.ident),
            Item::Union(defined) => self.named(file, &defined.ident),
            Item::Fn(function) => self.signature(file, &function.sig),
            Item::Trait(defined) => {
                self.named(file, &defined.ident);
                for item in &defined.items {
                    if let TraitItem::Fn(method) = item {
                        self.signature(file, &method.sig);
                    }
                }
            }
            Item::Impl(block) => {
                for item in &block.items {
                    if let ImplItem::Fn(method) = item {
                        self.signature(file, &method.sig);
                    }
                }
            }
            Item::Mod(module) if !is_for_tests(&module.attrs) => {
                if let Some((_, items)) = &module.content {
                    self.items(file, items);
                }
            }
            _ => {}
        }
    }

    fn named(&mut self, file: &'a RepositoryFile, name: &syn::Ident) {
        self.types.entry(name.to_string()).or_default().push(file);
    }

    fn signature(&mut self, file: &'a RepositoryFile, signature: &Signature) {
        let is_tuple =
            |argument: &FnArg| matches!(argument, FnArg::Typed(typed) if matches!(*typed.pat, Pat::Tuple(_)));
        if signature.inputs.iter().any(is_tuple) {
            self.tuples.push((file, signature.ident.to_string()));
        }
    }
}

/// Whether a file is a test or belongs to one.
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

/// The first line that has the text, from 1.
fn line_of(file: &RepositoryFile, text: &str) -> usize {
    let found = file.text.lines().position(|line| line.contains(text));
    found.map_or(1, |line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> RepositoryFile {
        RepositoryFile {
            path: path.into(),
            text: text.into(),
        }
    }

    fn complaints(files: &[RepositoryFile]) -> Vec<String> {
        let mut complaints = Complaints::default();
        check(files, &mut complaints);
        complaints.0
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
    fn a_tenth_of_the_types_may_share_their_names() {
        let many: String = (0..18).map(|number| format!("struct S{number};\n")).collect();
        let all = |last: &str| {
            [
                file("src/a.rs", &format!("{many}enum State {{}}\n")),
                file("src/b.rs", last),
                file("tests/c.rs", "struct State;"),
                file(
                    "src/d.rs",
                    "struct Error;\n#[cfg(test)]\nmod tests { struct State; }",
                ),
            ]
        };
        assert_eq!(complaints(&all("struct State;\nstruct Error;")), [""; 0]);
        let found = complaints(&all("struct State;\nmod x { struct State; }"));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("src/a.rs:19:"), "{found:?}");
    }
}
