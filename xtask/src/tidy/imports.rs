//! Imports: the files of a crate do not import each other in cycles.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, UseTree, Visibility};

use super::{Complaints, RepositoryFile};

/// The checked crates, and the maximum number of files in a cycle.
const CHECKED: [(&str, usize); 3] =
    [("crates/client/src/", 3), ("crates/fuse/src/", 3), ("crates/rpc/src/", 2)];

/// A module's path in its crate: `["data", "segment"]`.
type Module = Vec<String>;
/// Each module's file, and the modules that it imports from.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

pub(super) fn check(files: &[RepositoryFile], complaints: &mut Complaints) {
    for (folder, most) in CHECKED {
        let modules: BTreeMap<Module, &RepositoryFile> =
            files.iter().filter_map(|file| Some((module(file, folder)?, file))).collect();
        let imports: Imports =
            modules.iter().map(|(name, file)| (name.clone(), imported(name, file, &modules))).collect();
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

/// The other modules in a file's `use` lines. Re-exports do not count.
fn imported(
    own: &Module,
    file: &RepositoryFile,
    modules: &BTreeMap<Module, &RepositoryFile>,
) -> BTreeSet<Module> {
    // Invalid Rust is reported elsewhere.
    let items = syn::parse_file(&file.text).map(|parsed| parsed.items).unwrap_or_default();
    let mut paths = Vec::new();
    for item in items {
        if let Item::Use(import) = item
            && matches!(import.vis, Visibility::Inherited)
        {
            expand(&import.tree, &mut Vec::new(), &mut paths);
        }
    }
    let targets = paths.iter().filter_map(|path| absolute(own, path));
    let found = targets.filter_map(|path| {
        // The rest of the path is an item of the longest module.
        let lengths = (1..=path.len()).rev();
        let mut known = lengths.map(|length| path[..length].to_vec());
        known.find(|module| modules.contains_key(module))
    });
    found.filter(|module| module != own).collect()
}

fn expand(tree: &UseTree, before: &mut Module, paths: &mut Vec<Module>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            expand(&path.tree, before, paths);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                expand(tree, before, paths);
            }
        }
        UseTree::Name(name) => paths.push([before.as_slice(), &[name.ident.to_string()]].concat()),
        UseTree::Rename(name) => paths.push([before.as_slice(), &[name.ident.to_string()]].concat()),
        UseTree::Glob(_) => paths.push(before.clone()),
    }
}

/// A path from the crate's root; `None` for other crates.
fn absolute(own: &Module, path: &[String]) -> Option<Module> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([own, &path[1..]].concat()),
        "super" => Some([own.get(..own.len().checked_sub(supers)?)?, &path[supers..]].concat()),
        _ => None,
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
        let file = |path: &str| RepositoryFile {
            path: format!("crates/client/src/{path}.rs").into(),
            text: text.into(),
        };
        let all = ["data/mod", "data/flush", "data/read", "data/write", "data/write/inner", "names", "inode"]
            .map(file);
        let modules = all.iter().filter_map(|file| Some((module(file, "crates/client/src/")?, file)));
        let modules: BTreeMap<_, _> = modules.collect();
        let found = imported(&parts("data::write"), &all[3], &modules);
        let wanted = ["data", "data::flush", "data::read", "data::write::inner", "names"];
        assert_eq!(found, wanted.map(parts).into());
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
        assert_eq!(complaints.0.len(), 1, "{:?}", complaints.0);
    }
}
