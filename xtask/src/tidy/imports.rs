//! Imports: the files of a crate do not name one another in cycles, be it in `use` items or in
//! code.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, Macro, UseTree, VisRestricted, Visibility};

use super::{Complaints, RepositoryFile};

/// The checked crates, and the maximum number of files in a cycle. From the server on, it is the
/// present number; the server's operations all use the request, and the request its service.
const CHECKED: [(&str, usize); 9] = [
    ("crates/client/src/", 3),
    ("crates/fuse/src/", 3),
    ("crates/mount/src/", 2),
    ("crates/rpc/src/", 2),
    ("crates/server/src/", 79),
    ("crates/vfs/src/", 6),
    ("crates/policy/src/", 2),
    ("crates/observe/src/", 7),
    ("curt/src/", 5),
];

/// A module's path in its crate: `["data", "segment"]`.
type Module = Vec<String>;
/// Each module's file, and the modules that it imports from.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

pub(super) fn check(files: &[RepositoryFile], complaints: &mut Complaints) {
    for (folder, most) in CHECKED {
        let modules: BTreeMap<Module, &RepositoryFile> =
            files.iter().filter_map(|file| Some((module(file, folder)?, file))).collect();
        let is_module = |name: &Module| modules.contains_key(name);
        let uses = modules.iter().map(|(name, file)| (name.clone(), Uses::of(name, file, &is_module)));
        let uses = uses.collect();
        let imports: Imports = modules.keys().map(|name| (name.clone(), imported(name, &uses))).collect();
        for circle in circles(&imports).into_iter().filter(|circle| circle.len() > most) {
            let names: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
            complaints.add(
                &modules[&circle[0]].path,
                1,
                format!("{} files import one another in a circle: {}", names.len(), names.join(", ")),
            );
        }
    }
}

/// The module of a file; `None` for other files and for tests.
fn module(file: &RepositoryFile, folder: &str) -> Option<Module> {
    let path = file.path.to_str()?.strip_prefix(folder)?.strip_suffix(".rs")?;
    let mut parts: Module = path.split('/').map(str::to_owned).collect();
    if parts.iter().any(|part| part == "tests") {
        return None;
    }
    parts.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
    Some(parts)
}

/// The paths from the crate's root by which a module names others.
#[derive(Default)]
struct Uses {
    /// Those that the module alone sees: its `use` items, and the paths in its code.
    imports: Vec<Import>,
    /// Those that other modules can import from it (`pub use`, `pub(crate) use`).
    reexports: Vec<Import>,
}

/// One name of a `use` item, or a path in code.
struct Import {
    path: Module,
    /// The name by which it is known here; `None`: all names in `path`.
    name: Option<String>,
}

impl Uses {
    fn of(own: &Module, file: &RepositoryFile, is_module: &dyn Fn(&Module) -> bool) -> Self {
        // Invalid Rust is reported elsewhere.
        let Ok(parsed) = syn::parse_file(&file.text) else { return Self::default() };
        let mut paths = Paths { own: own.clone(), is_module, uses: Self::default(), written: Vec::new() };
        paths.visit_file(&parsed);
        let Paths { uses: Self { mut imports, reexports }, written, .. } = paths;
        for (own, path) in written {
            let known = imports.iter().chain(&reexports).filter_map(|import| import.leads(&path, is_module));
            let known: Vec<_> = known.chain(absolute(&own, &path, is_module)).collect();
            imports.extend(known.into_iter().map(|path| Import { name: path.last().cloned(), path }));
        }
        Self { imports, reexports }
    }
}

impl Import {
    /// Where a path leads that begins with the name of this `use` item.
    fn leads(&self, path: &[String], is_module: &dyn Fn(&Module) -> bool) -> Option<Module> {
        match &self.name {
            Some(name) => (*name == path[0]).then(|| [&self.path, &path[1..]].concat()),
            None => is_module(&[&self.path, &path[..1]].concat()).then(|| [&self.path, path].concat()),
        }
    }
}

/// Collects the `use` items and the paths of a file, without its tests.
struct Paths<'a> {
    /// The module at this point: that of the file, or one inside it.
    own: Module,
    is_module: &'a dyn Fn(&Module) -> bool,
    uses: Uses,
    /// The paths in code, and the modules in which they stand.
    written: Vec<(Module, Module)>,
}

impl Paths<'_> {
    /// The paths in the tokens of a macro, which may be anything.
    fn find_in(&mut self, tokens: TokenStream) {
        let mut path = Module::new();
        let mut colons = 0;
        for token in tokens {
            if matches!(&token, TokenTree::Punct(mark) if mark.as_char() == ':') {
                colons += 1;
                continue;
            }
            let goes_on = colons == 2 && matches!(token, TokenTree::Ident(_));
            if !goes_on {
                self.end_path(&mut path);
            }
            colons = 0;
            match token {
                TokenTree::Ident(part) => path.push(part.to_string()),
                TokenTree::Group(group) => self.find_in(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Module) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.written.push((self.own.clone(), path));
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let mut names = Vec::new();
        expand(&item.tree, &mut Vec::new(), &mut names);
        let is_private = matches!(item.vis, Visibility::Inherited);
        let found = if is_private { &mut self.uses.imports } else { &mut self.uses.reexports };
        found.extend(names.into_iter().filter_map(|Import { path, name }| {
            Some(Import { path: absolute(&self.own, &path, self.is_module)?, name })
        }));
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if module.attrs.iter().any(is_for_tests) {
            return;
        }
        self.own.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.own.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts = path.segments.iter().map(|part| part.ident.to_string());
        self.end_path(&mut parts.collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, written: &'ast Macro) {
        visit::visit_macro(self, written);
        self.find_in(written.tokens.clone());
    }

    /// `pub(in path)` imports nothing.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
}

/// The uses of all modules of a crate.
type AllUses = BTreeMap<Module, Uses>;

/// The other modules from which a module imports: the one that each path names, and those in which
/// re-exports find the item. A re-export alone is no import.
fn imported(own: &Module, uses: &AllUses) -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    for import in &uses[own].imports {
        follow(&import.path, uses, &mut found);
    }
    found.remove(own);
    found
}

/// Adds the module that a path names, and those to which its re-exports lead.
fn follow(path: &[String], uses: &AllUses, found: &mut BTreeSet<Module>) {
    // The rest of the path is an item of the longest module.
    let mut lengths = (0..=path.len()).rev();
    let Some(length) = lengths.find(|length| uses.contains_key(&path[..*length])) else {
        return;
    };
    let (module, item) = (&path[..length], path.get(length));
    let is_new = found.insert(module.to_vec());
    let reexports = &uses[module].reexports;
    let named = item.and_then(|item| reexports.iter().find(|reexport| reexport.name.as_ref() == Some(item)));
    if let Some(named) = named {
        follow(&[&named.path, &path[length + 1..]].concat(), uses, found);
    } else if is_new {
        // A name of a glob could come from each of them.
        for glob in reexports.iter().filter(|reexport| reexport.name.is_none()) {
            follow(&glob.path, uses, found);
        }
    }
}

fn expand(tree: &UseTree, before: &mut Module, names: &mut Vec<Import>) {
    let below = |before: &Module, name: &syn::Ident| [before.as_slice(), &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            expand(&path.tree, before, names);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                expand(tree, before, names);
            }
        }
        // `use module::{self}` names the module.
        UseTree::Name(name) if name.ident == "self" => {
            names.push(Import { path: before.clone(), name: before.last().cloned() });
        }
        UseTree::Name(name) => {
            names.push(Import { path: below(before, &name.ident), name: Some(name.ident.to_string()) });
        }
        UseTree::Rename(name) => {
            names.push(Import { path: below(before, &name.ident), name: Some(name.rename.to_string()) });
        }
        UseTree::Glob(_) => names.push(Import { path: before.clone(), name: None }),
    }
}

/// A path from the crate's root; `None` for other crates.
fn absolute(own: &Module, path: &[String], is_module: &dyn Fn(&Module) -> bool) -> Option<Module> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([own, &path[1..]].concat()),
        "super" => Some([own.get(..own.len().checked_sub(supers)?)?, &path[supers..]].concat()),
        // A module below this one, or another crate.
        _ => is_module(&[own, &path[..1]].concat()).then(|| [own, path].concat()),
    }
}

/// The strongly connected sets of modules, largest first.
fn circles(imports: &Imports) -> Vec<Vec<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|module| (module, reachable(imports, module))).collect();
    let mut left: BTreeSet<&Module> = imports.keys().collect();
    let mut found = Vec::new();
    while let Some(first) = left.pop_first() {
        let mutual = |other: &&&Module| reached[first].contains(**other) && reached[**other].contains(first);
        let others: Vec<_> = left.iter().filter(mutual).copied().collect();
        left.retain(|module| !others.contains(module));
        if !others.is_empty() {
            found.push([first].into_iter().chain(others).cloned().collect::<Vec<_>>());
        }
    }
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

fn reachable<'a>(imports: &'a Imports, from: &'a Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        let next = imports.get(module).into_iter().flatten();
        open.extend(next.filter(|module| reached.insert(*module)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &str) -> Module {
        path.split("::").map(str::to_owned).collect()
    }

    #[test]
    fn paths_lead_to_modules_from_wherever_they_are_written() {
        let text = "use crate::{data::{Page, flush}, names as n};\nuse super::read::Reader;\nuse std::fs;\n\
            pub(crate) use crate::inode::Inode;\nuse self::inner::*;";
        let others = ["data/mod", "data/flush", "data/read", "data/write/inner", "names", "inode"];
        let others = others.map(|path| (path, ""));
        let found = imported_by("data::write", &[&others[..], &[("data/write", text)]].concat());
        let wanted = ["data", "data::flush", "data::read", "data::write::inner", "names"];
        assert_eq!(found, wanted.map(parts).into());
    }

    #[test]
    fn a_path_in_code_is_an_import_as_well() {
        let others = ["inode/mod", "data/mod", "data/page", "data/write/inner", "tests", "names"];
        let others = others.map(|path| (path, ""));
        let cases: [(&str, &[&str]); 9] = [
            ("struct A { a: Vec<crate::inode::Inode> }", &["inode"]),
            ("fn f() -> super::page::Page { g() }", &["data::page"]),
            ("fn f() { let x = self::inner::g(1); }", &["data::write::inner"]),
            ("fn f() { inner::g(); other::inode::g(); }", &["data::write::inner"]),
            ("use super::page;\nfn f() { page::g(); }", &["data::page"]),
            ("fn f() { if a { use crate::names::X; } }", &["names"]),
            (
                "fn f() { assert!(x == y, \"{}\", a(crate::names::g::<u8>(1), crate::inode::A)); }",
                &["names", "inode"],
            ),
            ("pub(in crate::names) fn f(a: Self::A) -> A::B {}", &[]),
            ("#[cfg(test)] mod tests { fn f() { crate::inode::g(); } }", &[]),
        ];
        for (text, wanted) in cases {
            let wanted = wanted.iter().map(|name| parts(name)).collect();
            let files = [&others[..], &[("data/write", text)]].concat();
            assert_eq!(imported_by("data::write", &files), wanted, "{text}");
        }
    }

    #[test]
    fn a_path_in_code_leads_through_the_names_of_use_items() {
        let files = [
            ("user", "use crate::data as d;\nfn f() { d::Page::new(); }"),
            ("glob", "use crate::*;\nfn f() { data::segments::g(); }"),
            ("lib", ""),
            ("data/mod", "pub(crate) use segments::Page;"),
            ("data/segments", ""),
        ];
        assert_eq!(imported_by("user", &files), ["data", "data::segments"].map(parts).into());
        let root = Module::new();
        assert_eq!(imported_by("glob", &files), [root, parts("data::segments")].into());
    }

    /// The imports of a module, of files with these paths and texts.
    fn imported_by(own: &str, files: &[(&str, &str)]) -> BTreeSet<Module> {
        let folder = "crates/client/src/";
        let file = |(path, text): &(&str, &str)| RepositoryFile {
            path: format!("{folder}{path}.rs").into(),
            text: (*text).into(),
        };
        let files: Vec<_> = files.iter().map(file).collect();
        let modules: BTreeMap<_, _> =
            files.iter().filter_map(|file| Some((module(file, folder)?, file))).collect();
        let is_module = |name: &Module| modules.contains_key(name);
        let uses = modules.iter().map(|(name, file)| (name.clone(), Uses::of(name, file, &is_module)));
        imported(&parts(own), &uses.collect())
    }

    #[test]
    fn an_import_through_reexports_counts_for_each_file_up_to_the_item() {
        let files = |text| {
            [
                ("user", text),
                ("data/mod", "pub(crate) use segments::{List as Segments, Page};\npub use self::flush::*;"),
                (
                    "data/segments",
                    "pub(crate) use crate::list::List;\npub(crate) use crate::list as lists;\npub(crate) struct Page;",
                ),
                ("data/flush", "pub fn flush() {}"),
                ("list", "pub(crate) struct List;"),
            ]
        };
        let cases: [(&str, &[&str]); 6] = [
            ("use crate::data::segments::lists::List;", &["data::segments", "list"]),
            ("use crate::data::Page;", &["data", "data::segments"]),
            ("use crate::data::Segments;", &["data", "data::segments", "list"]),
            ("use crate::data::segments::List;", &["data::segments", "list"]),
            ("use crate::data::flush;", &["data::flush"]),
            ("use crate::data::{self, flush_all};", &["data", "data::flush"]),
        ];
        for (text, wanted) in cases {
            let wanted = wanted.iter().map(|name| parts(name)).collect();
            assert_eq!(imported_by("user", &files(text)), wanted, "{text}");
        }
        assert_eq!(imported_by("data", &files("")), BTreeSet::new(), "a re-export alone is no import");
    }

    #[test]
    fn circles_are_sets_that_reach_one_another() {
        let arrows = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d"), ("f", "a")];
        let mut imports = Imports::new();
        for (from, to) in arrows {
            imports.entry(parts(from)).or_default().insert(parts(to));
        }
        let found = circles(&imports);
        assert_eq!(found, [["a", "b", "c"].map(parts).to_vec(), ["d", "e"].map(parts).to_vec()]);
    }

    #[test]
    fn a_cycle_larger_than_its_crate_may_have_is_reported() {
        let count = 5;
        let files: Vec<_> = (0..count)
            .map(|number| RepositoryFile {
                path: format!("crates/fuse/src/m{number}.rs").into(),
                text: format!("use crate::m{}::X;", (number + 1) % count),
            })
            .collect();
        let mut complaints = Complaints::default();
        check(&files, &mut complaints);
        assert_eq!(complaints.violations.len(), 1, "{:?}", complaints.violations);
    }
}
