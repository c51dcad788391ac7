//! Checks of manifests: each dependency is used.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Complaints, RepositoryFile};

/// Tables of a manifest with dependencies of its package.
const TABLES: [&str; 3] = ["[dependencies]", "[dev-dependencies]", "[build-dependencies]"];
/// The table from which packages inherit dependencies.
const WORKSPACE: &str = "[workspace.dependencies]";

pub(super) fn check(files: &[RepositoryFile], complaints: &mut Complaints) {
    let manifests = || files.iter().filter(|file| file.name() == "Cargo.toml");
    let packages: BTreeSet<&Path> = manifests().filter_map(|manifest| manifest.path.parent()).collect();
    let mut used = Vec::new();
    for manifest in manifests() {
        let package = manifest.path.parent();
        let sources: Vec<&RepositoryFile> = files
            .iter()
            .filter(|file| file.has_ending("rs") && package_of(file, &packages) == package)
            .collect();
        for (line, name) in TABLES.iter().flat_map(|table| entries(&manifest.text, table)) {
            let word = name.replace('-', "_");
            if !sources.iter().any(|source| has_word(&source.text, &word)) {
                complaints.add(&manifest.path, line, format!("{name} is a dependency and not used"));
            }
            used.push(name);
        }
    }
    for manifest in manifests() {
        for (line, name) in entries(&manifest.text, WORKSPACE) {
            if !used.contains(&name) {
                complaints.add(&manifest.path, line, format!("no package depends on {name}"));
            }
        }
    }
}

/// The directory of the package to which a source belongs: the nearest one above it.
fn package_of<'f>(source: &'f RepositoryFile, packages: &BTreeSet<&Path>) -> Option<&'f Path> {
    source.path.ancestors().skip(1).find(|directory| packages.contains(directory))
}

/// The names in a table, with their lines.
pub(super) fn entries<'t>(manifest: &'t str, table: &str) -> Vec<(usize, &'t str)> {
    let lines = manifest.lines().enumerate().skip_while(|(_, line)| *line != table).skip(1);
    lines
        .take_while(|(_, line)| !line.starts_with('['))
        .filter_map(|(number, line)| {
            let (key, _) = line.split_once('=')?;
            let name = key.trim().split('.').next()?;
            (!name.starts_with('#')).then_some((number + 1, name))
        })
        .collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let part = |letter: Option<char>| letter.is_some_and(|it| it.is_alphanumeric() || it == '_');
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !part(before) && !part(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> RepositoryFile {
        RepositoryFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn what_nothing_uses_is_complained_of() {
        let files = [
            file(
                "Cargo.toml",
                "[workspace.dependencies]\nserde_json = \"1\"\nlibc = \"0.2\"\nnobody = \"1\"\n[profile.dev]\nopt-level = 1\n",
            ),
            file(
                "a/Cargo.toml",
                "[dependencies]\nserde_json.workspace = true\n# why\nlibc = { workspace = true }\n",
            ),
            file("a/src/lib.rs", "//! my_libc\nuse serde_json::Value;\n"),
            file("a/b/Cargo.toml", "[dev-dependencies]\nsha2 = \"1\"\n"),
            // It belongs to b, not to a.
            file("a/b/tests/x.rs", "use libc as _;\nuse sha2 as _;\n"),
        ];
        let mut complaints = Complaints::default();
        check(&files, &mut complaints);
        assert_eq!(
            complaints.violations,
            [
                "a/Cargo.toml:4: libc is a dependency and not used",
                "Cargo.toml:4: no package depends on nobody"
            ]
        );
    }
}
